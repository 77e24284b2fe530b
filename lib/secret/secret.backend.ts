import type { NotShownReason, SecretEnd } from './secret.types.js';
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

/** What every reply says of a secret, or of its tombstone. */
export interface SecretFacts {
  readonly viewsRemaining: number | null;
  readonly viewsUsed: number;
  readonly viewedAtMs: number | null;
  readonly expiresAtMs: number | null;
  /** Null: failures are not counted. */
  readonly failuresRemaining: number | null;
  /** How it was burned; null: it was not. */
  readonly ended: SecretEnd | null;
  readonly endedAtMs: number | null;
  /** As given at create, or empty. */
  readonly label: string;
}

/** Facts under the word for what came of the call. */
export type OutcomeReply<Outcome extends string> = SecretFacts & { readonly outcome: Outcome };

export interface Content {
  readonly payload: Buffer;
  readonly text: boolean;
  readonly meta: string;
}

/**
 * `burned_by_you`: the viewTag is of a view that was counted. `failed`: it is of one that counts as a failure.
 * `lease_needed`: a secret that counts failures is shown on lease only.
 */
export type ViewReply =
  | (OutcomeReply<'shown'> & Content & { readonly replayed: boolean })
  | OutcomeReply<'burned' | 'burned_by_you' | 'expired' | 'leased' | 'failed' | 'lease_needed'>
  | 'not_found';

export type PeekReply =
  | (OutcomeReply<'live'> & Pick<Content, 'meta'>)
  | OutcomeReply<Exclude<NotShownReason, 'not_found' | 'failed'>>
  | 'not_found';

/** `burned`: by this call (or its first sending). `burned_before`: by somebody else, by views or by failures. */
export type BurnReply = OutcomeReply<'burned' | 'burned_before' | 'expired'> | 'not_found';

/** `settled`: in the way that was asked for. */
export type SettleReply = OutcomeReply<'settled'> | 'not_found';

export type StatusReply = OutcomeReply<'live' | 'leased' | 'burned' | 'expired'> | 'not_found';

export interface View {
  readonly tag: string;
  readonly viewTag: string;
  /** Names the call, where the viewTag names the view: only a call that is sent again is free of a try. */
  readonly callId: string;
  /** 0: counted at once. */
  readonly leaseMs: number;
}

/**
 * The port of secrets: each method is one atomic step, and one round trip. It knows tags only, never ids;
 * a call that is sent twice, with the same proof, viewTag and callId, or burnId, counts once.
 */
export interface SecretBackend {
  create(secret: StoredSecret, options: CallOptions): Promise<CreateReply>;
  view(view: View, options: CallOptions): Promise<ViewReply>;
  peek(tag: string, options: CallOptions): Promise<PeekReply>;
  /** With a proof only if it is the secret's. */
  burn(burn: { tag: string; proof?: string; burnId: string }, options: CallOptions): Promise<BurnReply>;
  status(receipt: { tag: string; proof: string }, options: CallOptions): Promise<StatusReply>;
  confirm(view: { tag: string; viewTag: string }, options: CallOptions): Promise<SettleReply>;
  release(view: { tag: string; viewTag: string }, options: CallOptions): Promise<SettleReply>;
}
