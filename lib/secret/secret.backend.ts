import type { NotShownReason, SecretStatus } from './secret.types.js';
import type { CheckedSecret } from './secret.values.js';

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
}

/** A new secret under its tag. `proof` is what its receipt is known by. */
export interface StoredSecret extends Omit<CheckedSecret, 'id'> {
  readonly tag: string;
  readonly proof: string;
}

/** `conflict`: the tag is taken. The same proof again is a re-sent call, and gets the first one's answer. */
export type CreateReply = { readonly expiresAtMs: number | null } | 'conflict';

export type ViewReply =
  | {
      readonly payload: Buffer;
      readonly text: boolean;
      readonly viewsRemaining: number | null;
      readonly burned: boolean;
      readonly expiresAtMs: number | null;
      readonly meta: string;
      readonly replayed: boolean;
    }
  | NotShownReason
  | 'burned-by-you';

export type PeekReply =
  | { readonly viewsRemaining: number | null; readonly expiresAtMs: number | null; readonly meta: string }
  | NotShownReason;

/** `burned`: by this call (or its first sending). `burned-before`: by somebody else, or by views. */
export type BurnReply = 'burned' | 'burned-before' | 'expired' | 'not_found';

export type SettleReply = { readonly viewsRemaining: number | null; readonly burned: boolean } | 'not_found';

export type StatusReply = Omit<Extract<SecretStatus, { ok: true }>, 'ok'> | 'not_found';

/**
 * The port of secrets: each method is one atomic step, and one round trip. It knows tags only, never ids;
 * a call that is sent twice, with the same proof, viewTag or burnId, counts once.
 */
export interface SecretBackend {
  create(secret: StoredSecret, options: CallOptions): Promise<CreateReply>;
  /** `leaseMs` 0: counted at once. */
  view(view: { tag: string; viewTag: string; leaseMs: number }, options: CallOptions): Promise<ViewReply>;
  peek(tag: string, options: CallOptions): Promise<PeekReply>;
  /** With a proof only if it is the secret's. */
  burn(burn: { tag: string; proof?: string; burnId: string }, options: CallOptions): Promise<BurnReply>;
  status(receipt: { tag: string; proof: string }, options: CallOptions): Promise<StatusReply>;
  confirm(view: { tag: string; viewTag: string }, options: CallOptions): Promise<SettleReply>;
  release(view: { tag: string; viewTag: string }, options: CallOptions): Promise<SettleReply>;
}
