interface Signalled {
  signal?: AbortSignal | undefined;
}

interface NewSecret extends Signalled {
  /**
   * What is kept secret: text, or any bytes. At most `secret.maxBytes` (1 MiB). Views give it back byte for
   * byte, a string as a string. SyncGuard does not encrypt it: do that first, with a key that Redis never sees.
   */
  payload: string | Uint8Array;
  /**
   * A name of your own, 1 to 512 UTF-8 bytes; whoever knows it can view. Default: 128 random bits, which
   * nobody guesses.
   */
  id?: string;
  /** Facts for `peek()`, readable by whoever knows the id: a file's name, a hint. At most 4 KiB as JSON. */
  meta?: SecretMeta;
  /**
   * Burn the secret after so many wrong tries, 1 to 100. It is then shown on lease only (`view(id, { leaseMs })`):
   * a lease that is released, or that lapses, is a wrong try. Default: wrong tries are not counted.
   */
  maxFailures?: number;
  /**
   * What events of this secret carry as `label`, at most 200 UTF-8 bytes: an order's number, a name to send "your
   * secret was opened" to. It is stored as it is, and outlives the payload. Never put the payload into it.
   */
  label?: string;
}

/** A secret ends by its views, by its time, or by whichever comes first: one of the two must be given. */
export type CreateSecretOptions = NewSecret & (ByViews | ByTime);

interface ByViews {
  /** How many views there are. 1 to 10,000. */
  views: number;
  /** How long it lives, in ms, 1 to 10 years. Fixed here: a view does not move it. Default: for ever. */
  ttlMs?: number;
}

interface ByTime {
  /** Default: as many views as the time allows. */
  views?: number;
  ttlMs: number;
}

/** Plain JSON. */
export type SecretMeta = Readonly<Record<string, unknown>>;

export interface CreatedSecret {
  /** For the reader. 22 base64url characters, or the id that was given. */
  readonly id: string;
  /** For the sender: shows `status()` and can `burn()`, but cannot view, and does not tell the id. */
  readonly receipt: string;
  /** Null: not limited by views. */
  readonly viewsRemaining: number | null;
  /** By the backend's clock. Null: not limited by time. */
  readonly expiresAtMs: number | null;
}

export interface ViewOptions extends Signalled {
  /**
   * Names this view, 1 to 512 UTF-8 bytes: a second call with the same name gets the same answer and costs no
   * second view. Make it unguessable, or another reader may ride along. Default: one of its own for each call.
   */
  viewId?: string;
  /** Show now, count later: the view is pending for so long, in ms, 1 to 2^31 - 1. See `confirm()`. */
  leaseMs?: number;
}

/** Why a secret is not shown. With the option `uniform` all but those with `own` read `not_found`. */
export type NotShownReason =
  /** There never was one, or its tombstone has gone. */
  | 'not_found'
  /** The views are used up, there were `maxFailures` wrong tries, or it was burned by hand. */
  | 'burned'
  /** Its time is over. */
  | 'expired'
  /** The last views or tries are on lease (or 100 are at once): one of them may come back. */
  | 'leased'
  /** This very viewId counts as a wrong try (`maxFailures`). Each try needs a viewId of its own. */
  | 'failed';

/** How a secret was burned: its views were used up, somebody called `burn()`, or by `maxFailures` wrong tries. */
export type SecretEnd = 'used' | 'burned' | 'failures';

export interface NotShown {
  readonly ok: false;
  readonly reason: NotShownReason;
}

export interface ShownSecret {
  readonly ok: true;
  /** As it was given: a string, or a Buffer. */
  readonly payload: string | Buffer;
  /** After this view. Null: not limited by views. */
  readonly viewsRemaining: number | null;
  /** This was the last view: the payload is gone from the backend. */
  readonly burned: boolean;
  readonly expiresAtMs: number | null;
  /** As given at create. */
  readonly meta?: SecretMeta;
  /** Of a view on lease: for `confirm()` and `release()`. */
  readonly viewId?: string;
  /** This viewId was shown before. */
  readonly replayed?: true;
}

export type ViewResult =
  | ShownSecret
  /** `own`: it was this very viewId that counted, as a view (the payload went out with the first answer) or a failure. */
  | (NotShown & { readonly own?: true });

/** What a reader may know of the views so far. */
export interface ViewsSoFar {
  /** Views that were counted, or are on lease. Views that were given back are none. */
  readonly viewsUsed: number;
  /** When it was shown last, on lease or not. Null: nobody has seen it. */
  readonly viewedAtMs: number | null;
  /** How many wrong tries are left. Only where `maxFailures` was given. */
  readonly failuresRemaining?: number;
}

export type PeekResult =
  | (ViewsSoFar & {
      readonly ok: true;
      readonly viewsRemaining: number | null;
      readonly expiresAtMs: number | null;
      readonly meta?: SecretMeta;
    })
  /** Of a secret that was there, what became of it; of `not_found`, and with `uniform`, nothing. */
  | (NotShown & Partial<ViewsSoFar>);

/**
 * `already`: it was burned before, and how. `ok: false`: there is nothing to burn (any more); `uniform` tells a
 * reader no more than that.
 */
export type BurnResult =
  | { readonly ok: true; readonly already?: SecretEnd }
  | { readonly ok: false; readonly reason: 'not_found' | 'expired' };

/** What the sender may know. A secret that was opened before its reader says so was opened by somebody else. */
export type SecretStatus =
  | (ViewsSoFar & {
      readonly ok: true;
      readonly state: 'live' | 'leased' | 'burned' | 'expired';
      readonly viewsRemaining: number | null;
      readonly expiresAtMs: number | null;
      /** How it was burned, and when. Only of the state `burned`. */
      readonly ended?: SecretEnd;
      readonly endedAtMs?: number;
    })
  | { readonly ok: false; readonly reason: 'not_found' };

/**
 * `ok: false`: there never was such a view, it was settled the other way, or nothing is known of the secret any more.
 * A view that has lapsed is counted: `confirm` finds it so (`ok: true`), `release` comes too late (`ok: false`).
 * With `maxFailures` it counts as a wrong try too, and `confirm` comes too late as well.
 */
export type SettleResult =
  | {
      readonly ok: true;
      readonly viewsRemaining: number | null;
      readonly burned: boolean;
      /** How many wrong tries are left. Only where `maxFailures` was given. */
      readonly failuresRemaining?: number;
    }
  | { readonly ok: false };
