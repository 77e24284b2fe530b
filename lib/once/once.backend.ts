import type { Page, ResolvedPageOptions } from '../core/page.js';
import type { CallOptions } from '../core/validate.js';
import type { AfterCrash, ForgetOnceResult, OnceRecord, SettleOnceResult } from './once.types.js';

export const ONCE_STATES = ['running', 'done', 'failed', 'unknown'] as const satisfies OnceRecord['state'][];

/** What is kept of a run: a value, an answer over HTTP, an error that is thrown again, or only that it is done. */
export interface Kept {
  readonly form: 'value' | 'http' | 'error' | 'none';
  /** A text stands for its UTF-8 bytes. */
  readonly bytes: string | Buffer;
}

/** What names a run. */
export interface Claimed {
  readonly key: string;
  /** Random, of one attempt to claim: a claim that is sent twice is one. */
  readonly nonce: string;
  /** Where its record is. A backend notes it, as several calls of a run ask for it. */
  record?: string;
}

/** A call that wants to run. */
export interface Claim extends Claimed {
  /** The hash of the payload, or `-`. */
  readonly print: string;
  readonly leaseMs: number;
  readonly keepMs: number;
  readonly afterCrash: AfterCrash;
  /** Random, of one call. It names the place of a call that waits. */
  readonly waiter: string;
  /** How long the call goes on to wait, in ms. 0: it does not. */
  readonly waitMs: number;
}

/**
 * - `busy`: another call runs, and has for `ranForMs`, or has just failed and one that waits longer has its turn. If nothing else
 *   happens, the call may run in `remainingMs`.
 * - `mismatch`: the key has another payload.
 * - `unknown`: see `afterCrash`.
 */
export type ClaimReply =
  | { readonly status: 'claimed'; readonly attempt: number; readonly fence: string }
  | { readonly status: 'done'; readonly attempt: number; readonly atMs: number; readonly kept: Kept }
  | { readonly status: 'busy'; readonly remainingMs: number; readonly ranForMs: number }
  | { readonly status: 'mismatch' }
  | { readonly status: 'unknown' };

/** How a run has ended. `nothing` takes the claim back, as no body ran. */
export type OnceEnd = { readonly kept: Kept } | 'failed' | 'nothing';

/**
 * The port of runs. Each method is one atomic step and one round trip. A run that was overtaken, forgotten or settled by hand
 * changes nothing any more.
 */
export interface OnceBackend {
  claim(claim: Claim, options: CallOptions): Promise<ClaimReply>;
  /** Returns whether the run still has its key. */
  renew(run: Claimed, leaseMs: number): Promise<boolean>;
  /** Returns when it ended, in ms since 1970, or 0 if it was overtaken. */
  end(run: Claimed, end: OnceEnd): Promise<number>;
  get(key: string, options: CallOptions): Promise<OnceRecord | null>;
  list(page: ResolvedPageOptions): Promise<Page<OnceRecord>>;
  /** `nonce`: a second send of the call has the same one. */
  settle(run: Claimed, kept: Kept, options: CallOptions): Promise<SettleOnceResult>;
  forget(key: string, force: boolean, options: CallOptions): Promise<ForgetOnceResult>;
  /**
   * Calls the listener when a run of the key ends, until the returned function is called. A backend may miss an end: then the
   * waiter looks by itself, every `pollMs`.
   */
  onEnd(key: string, listener: () => void): () => void;
  readonly pollMs: number;
}
