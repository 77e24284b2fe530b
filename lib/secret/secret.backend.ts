import { days } from '../core/time.js';
import type { CallOptions } from '../core/validate.js';
import type { NotShownReason, SecretEnd, ViewsSoFar } from './secret.types.js';
import type { CheckedSecret, Receipt } from './secret.validate.js';

/** For how long after its end a deadline keeps the tombstone of a secret, at most. */
export const LONGEST_TOMBSTONE_MS = days(365);

/** A new secret under its tag. `proof` is the hash of the secret part of its receipt. */
export interface StoredSecret extends Omit<CheckedSecret, 'id'> {
  readonly tag: string;
  readonly proof: string;
}

/** `conflict`: the tag is taken. A call with the same proof is a second send, and gets the first answer. */
export type CreateReply = { readonly expiresAtMs: number | null } | 'conflict';

/** What every reply reports about a secret or its tombstone. */
export interface SecretFacts extends ViewsSoFar {
  readonly viewsRemaining: number | null;
  readonly expiresAtMs: number | null;
  /** How it was burned. Null if it was not. */
  readonly ended: SecretEnd | null;
  readonly endedAtMs: number | null;
  /** As passed to `create()`, or empty. */
  readonly label: string;
  /** How many views were on lease when it was burned. */
  readonly leasedAtBurn: number;
}

/** Facts with the outcome of the call: one type for each outcome. */
export type OutcomeReply<Outcome extends string> = Outcome extends string
  ? SecretFacts & { readonly outcome: Outcome }
  : never;

export type Content = Pick<StoredSecret, 'payload' | 'text' | 'meta'>;

/**
 * - `burned_by_you`: the secret is burned, and the viewTag belongs to a view that was counted.
 * - `failed`: the viewTag belongs to a view that counts as a failure.
 * - `lease_needed`: a secret that counts failures is shown on lease only.
 */
export type ViewReply =
  | (OutcomeReply<'shown'> & Content & { readonly replayed: boolean })
  | OutcomeReply<'burned' | 'burned_by_you' | 'expired' | 'leased' | 'failed' | 'lease_needed'>
  | 'not_found';

export type PeekReply =
  | (OutcomeReply<'live'> & Pick<Content, 'meta'>)
  | OutcomeReply<Exclude<NotShownReason, 'not_found' | 'failed'>>
  | 'not_found';

/** `burned`: burned by this call or its first send. `burned_before`: burned in another way, or earlier. */
export type BurnReply = OutcomeReply<'burned' | 'burned_before' | 'expired'> | 'not_found';

/**
 * - `cut_off`: the view was on lease when the secret was burned.
 * - `burned`: the secret was burned by `burn()`, and the view was not settled in this way before.
 */
export type SettleReply = OutcomeReply<'settled' | 'cut_off' | 'burned'> | 'not_found';

export type StatusReply = OutcomeReply<'live' | 'leased' | 'burned' | 'expired'> | 'not_found';

export interface Burn {
  readonly tag: string;
  /** Given by the sender. The proof of another secret burns nothing. */
  readonly proof?: string;
  readonly burnId: string;
}

export interface View {
  readonly tag: string;
  readonly viewTag: string;
  /** Several calls may have the same viewTag, and each counts as a try. A call that is sent twice counts as one. */
  readonly callId: string;
  /** 0: the view is counted at once. */
  readonly leaseMs: number;
}

export type TakenView = Pick<View, 'tag' | 'viewTag'>;

/**
 * The port of secrets. Each method is one atomic step and one round trip. It gets tags and never ids. A call that is
 * sent twice counts once: it has the same proof, burnId, or viewTag and callId.
 */
export interface SecretBackend {
  create(secret: StoredSecret, options: CallOptions): Promise<CreateReply>;
  view(view: View, options: CallOptions): Promise<ViewReply>;
  peek(tag: string, options: CallOptions): Promise<PeekReply>;
  burn(burn: Burn, options: CallOptions): Promise<BurnReply>;
  status(receipt: Receipt, options: CallOptions): Promise<StatusReply>;
  confirm(view: TakenView, options: CallOptions): Promise<SettleReply>;
  release(view: TakenView, options: CallOptions): Promise<SettleReply>;
}
