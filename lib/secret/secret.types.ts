import type { CallOptions } from '../core/validate.js';

/** The options of `create()`, except `views` and `ttlMs`. */
export interface NewSecret extends CallOptions {
  /**
   * The secret: text, or any bytes. At most `secret.maxBytes` (1 MiB). Views return it byte for byte, and a string as a
   * string. SyncGuard does not encrypt it. Encrypt it first, with a key that Redis never sees.
   */
  payload: string | Uint8Array;
  /**
   * An id of your own, 1 to 512 UTF-8 bytes. Anyone who knows it can view the secret. Default: 128 random bits, which
   * nobody can guess.
   */
  id?: string;
  /** Facts that `peek()` returns to anyone who knows the id, such as a file name or a hint. At most 4 KiB as JSON. */
  meta?: SecretMeta;
  /**
   * Burns the secret after so many wrong tries, 1 to 100. It is then shown on lease only (`view(id, { leaseMs })`). A
   * lease that is released or that lapses counts as a wrong try. Default: wrong tries are not counted.
   */
  maxFailures?: number;
  /**
   * The `label` in events of this secret, at most 200 UTF-8 bytes. Use it for an order number, or for the account that
   * receives the message "your secret was opened". It is stored unencrypted, and is kept longer than the payload. Never
   * put the payload into it.
   */
  label?: string;
  /**
   * For how long after its end it is remembered, in ms, 0 to 2^31 - 1. See `secret.tombstoneMs`. Until then its id is taken.
   * Default: `secret.tombstoneMs` (24 hours).
   */
  tombstoneMs?: number;
}

/** A secret ends by its views, by its time, or by whichever comes first. At least one of the two is required. */
export type CreateSecretOptions = NewSecret & (SecretByViews | SecretByTime);

/** A secret that ends by its views. */
export interface SecretByViews {
  /** How many views there are. 1 to 10,000. */
  views: number;
  /** How long the secret lives, in ms, from 1 ms to 10 years. Views do not extend it. Default: for ever. */
  ttlMs?: number;
}

/** A secret that ends by its time. */
export interface SecretByTime {
  /** How many views there are. 1 to 10,000. Default: no limit. */
  views?: number;
  /** How long the secret lives, in ms, from 1 ms to 10 years. Views do not extend it. */
  ttlMs: number;
}

/** A plain JSON object. */
export type SecretMeta = Readonly<Record<string, unknown>>;

/** What `create()` returns. */
export interface CreatedSecret {
  /** For the reader. 22 base64url characters, or the id that was passed. */
  readonly id: string;
  /** For the sender. It works for `status()` and `burn()`, but it cannot view the secret and does not reveal the id. */
  readonly receipt: string;
  /** How many views are left. Null if views are not limited. */
  readonly viewsRemaining: number | null;
  /** When the secret expires, by the clock of the backend. Null if the time is not limited. */
  readonly expiresAtMs: number | null;
}

/** Options of `view()`. */
export interface ViewOptions extends CallOptions {
  /**
   * Identifies this view, 1 to 512 UTF-8 bytes. A second call with the same viewId gets the same answer and uses up no
   * second view. Make it hard to guess, because another reader with the same viewId sees the secret too. Default: a new
   * one for each call.
   */
  viewId?: string;
  /**
   * Shows the secret now, and leaves it open whether the view is counted. The view stays pending for this time, in ms,
   * from 1 to 2^31 - 1. See `confirm()` and `release()`.
   */
  leaseMs?: number;
}

/**
 * Why a secret is not shown. With the option `uniform` every reason reads `not_found`, except in results with `own`.
 */
export type NotShownReason =
  /** The secret never existed, or its tombstone is gone. */
  | 'not_found'
  /** The views are used up, there were `maxFailures` wrong tries, or `burn()` was called. */
  | 'burned'
  /** Its deadline has passed. */
  | 'expired'
  /** The last views or tries are on lease, or 100 views are. One of them may be released. */
  | 'leased'
  /** This viewId counts as a wrong try (`maxFailures`). Use a new viewId for each try. */
  | 'failed';

/**
 * How a secret was burned: `used` by its last view, `burned` by a call of `burn()`, `failures` by `maxFailures` wrong
 * tries.
 */
export type SecretEnd = 'used' | 'burned' | 'failures';

/** The secret is not shown. */
export interface NotShown {
  readonly ok: false;
  /** Why it is not shown. */
  readonly reason: NotShownReason;
}

/** The secret is shown. */
export interface ShownSecret extends Pick<CreatedSecret, 'viewsRemaining' | 'expiresAtMs'> {
  readonly ok: true;
  /** As it was passed to `create()`: a string, or a Buffer. */
  readonly payload: string | Buffer;
  /** True for the last view: the payload is gone from the backend. */
  readonly burned: boolean;
  /** As passed to `create()`. */
  readonly meta?: SecretMeta;
  /** Only for a view on lease. Pass it to `confirm()` or `release()`. */
  readonly viewId?: string;
  /** This viewId was shown before. */
  readonly replayed?: true;
}

/** What `view()` returns. */
export type ViewResult =
  | ShownSecret
  /** `own`: this viewId was counted, as a view (the first answer had the payload) or as a failure. */
  | (NotShown & { readonly own?: true });

/** What a reader may learn about earlier views. */
export interface ViewsSoFar {
  /** Views that were counted, and views on lease. Released views are left out. */
  readonly viewsUsed: number;
  /** When it was last shown, on lease or not. Null if it was never shown. */
  readonly viewedAtMs: number | null;
  /** How many wrong tries are left. Only if `maxFailures` was set. */
  readonly failuresRemaining?: number;
}

/** What `peek()` of a secret returns. */
export type PeekResult =
  | (ViewsSoFar & { readonly ok: true } & Pick<ShownSecret, 'viewsRemaining' | 'expiresAtMs' | 'meta'>)
  /** The views so far are missing with the reason `not_found`, and with `uniform`. */
  | (NotShown & Partial<ViewsSoFar>);

/**
 * - `ok: true`: the secret is burned. If it had been burned before, `already` says how. `leased` readers had it on lease
 *   when it was burned: they were shown the payload, and had not confirmed. Their `confirm()` now returns `burned`.
 * - `ok: false`: there is no secret to burn. With `uniform`, a call by id also returns `not_found` for a secret that
 *   was burned before or has expired.
 */
export type BurnResult =
  | {
      readonly ok: true;
      /** How many readers had it on lease when it was burned. */
      readonly leased: number;
      /** How it had been burned before this call. */
      readonly already?: SecretEnd;
    }
  | {
      readonly ok: false;
      /** Why there is no secret to burn. */
      readonly reason: 'not_found' | 'expired';
    };

/**
 * The facts that a sender may learn. If there was a view, and the intended reader has not viewed the secret, another
 * person has seen it.
 */
export type SecretStatus =
  | (Pick<ShownSecret, 'viewsRemaining' | 'expiresAtMs'> &
      ViewsSoFar & {
        readonly ok: true;
        /** Whether the secret can still be viewed. */
        readonly state: 'live' | 'leased' | 'burned' | 'expired';
        /** How it was burned, and when. Only with the state `burned`. */
        readonly ended?: SecretEnd;
        /** When it was burned, in ms since 1970. Only with the state `burned`. */
        readonly endedAtMs?: number;
        /** How many readers had it on lease when it was burned. They were shown the payload. */
        readonly leasedAtBurn: number;
      })
  | { readonly ok: false; readonly reason: 'not_found' };

/**
 * `ok: false`: the view never existed, it was settled the other way, or the secret is no longer known. A view that has
 * lapsed is counted, so `confirm` returns `ok: true` and `release` comes too late (`ok: false`). With `maxFailures` a
 * lapsed view is a wrong try, and `confirm` comes too late as well.
 *
 * `reason: 'burned'`: `burn()` came before, and this call settles nothing. What the reader was shown stays counted.
 */
export type SettleResult =
  | (Pick<ShownSecret, 'viewsRemaining'> &
      Pick<ViewsSoFar, 'failuresRemaining'> & {
        readonly ok: true;
        /** Whether the secret is burned now. */
        readonly burned: boolean;
      })
  | { readonly ok: false; readonly reason?: 'burned' };
