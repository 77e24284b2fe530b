import type { PageOptions } from '../core/page.js';
import type { ByHand } from '../telemetry/by-hand.js';

/** A whole number of minor units (cents, tokens), 0 to 2^53 - 1. */
export type Amount = number;

/**
 * The time over which a limit counts. Windows of `windowMs` start at multiples of it since 1970. Each window
 * has counters of its own, so no job has to reset anything.
 */
export type Period =
  | 'lifetime'
  | CalendarPeriod
  | {
      /** The length of the window, in ms. */
      readonly windowMs: number;
    };

/** A unit of the calendar in a time zone. */
export interface CalendarPeriod {
  /** The unit. */
  readonly every: 'hour' | 'day' | 'week' | 'month' | 'year';
  /** The IANA time zone of the calendar, such as `'Europe/Berlin'`. Default: `'UTC'`. */
  readonly tz?: string;
  /**
   * Where in its unit the period starts. Hour: minute, 0-59, default 0. Day: hour, 0-23, default 0. Week:
   * day, 1 (Monday) to 7, default 1. Month: day, 1-31 (the last day in a shorter month), default 1. Year:
   * month, 1-12, default 1.
   */
  readonly anchor?: number;
}

/**
 * The window from `startMs` up to, but without, `endMs`. `endMs` is the start of the next window. A lifetime
 * has no end.
 */
export interface BudgetWindow {
  /** The first instant of the window. */
  readonly startMs: number;
  /** The first instant of the next window. Null for a lifetime. */
  readonly endMs: number | null;
}

/** A limit of the option `budget.limits`. */
export interface BudgetLimit {
  /**
   * `'user'` limits each user, and `'user:42'` limits one user. In the same period `'user:42'` takes
   * precedence over `'user'`. A scope without an id, such as `'org'`, is limited by the entry `'org'`.
   */
  scope: string;
  /** The time over which the limit counts. */
  period: Period;
  /** A limit of 0 blocks everything. `'unlimited'` counts without a limit. */
  limit: Amount | 'unlimited';
  /**
   * Percentages of the limit, 1 to 1,000. The result of the operation that reaches one lists it in `crossed`. Each is
   * listed once in a window, and again after a `credit` or a raised `setLimit` has put the usage below it. Default:
   * none.
   */
  thresholds?: readonly number[];
}

/** Refers to an operation: a result of `reserve` or `charge`, or its `root` and `id`. */
export interface BudgetRef {
  /** The tenant. Default: `'default'`. */
  root?: string;
  /** The id that was passed to `reserve` or `charge`, or the random one of its result. */
  id: string;
  /**
   * Which hold is meant if an id was reserved several times, 1 to 2^53 - 1. Every result has the number. A call for an
   * older generation never changes the newest hold. Default: the newest.
   */
  generation?: number;
}

/**
 * The sums of one scope and period in its open window. `available` is max(0, limit + credits - committed -
 * reserved).
 */
export interface Balance {
  /** The scope whose sums these are. */
  readonly scope: string;
  /** The period whose sums these are. */
  readonly period: Period;
  /** The open window. */
  readonly window: BudgetWindow;
  /** The limit, as configured or set by `setLimit`. */
  readonly limit: Amount | 'unlimited';
  /** What was added to the limit in this window. */
  readonly credits: Amount;
  /** What is spent, after refunds. */
  readonly committed: Amount;
  /** What pending holds keep. */
  readonly reserved: Amount;
  /** What a request may still ask for. */
  readonly available: Amount | 'unlimited';
}

/**
 * A threshold that this call reached for the first time in its window, or since a credit or a raise of the
 * limit.
 */
export interface Crossed extends Pick<Balance, 'scope' | 'period'> {
  /** The percentage that was reached. */
  readonly percent: number;
}

/** A limit that has no room for the request. */
export interface Violation extends Omit<Balance, 'window'> {
  /** How much the request asked for. */
  readonly requested: Amount;
  /** When the window ends. Null for a lifetime. */
  readonly resetAtMs: number | null;
}

/** The state of an operation. A charge is `finalized`. */
export type HoldState = 'pending' | 'finalized' | 'aborted' | 'expired';

/**
 * The record of an operation. It is kept until `retentionMs` after the operation has ended. As long as only its id is
 * kept, the record has no `meta`, and all its dates are that of its end.
 */
export interface BudgetRecord {
  /** The tenant that owns the scopes. */
  readonly root: string;
  /** The id of the operation. */
  readonly id: string;
  /** Whether it was reserved first, or charged at once. */
  readonly kind: 'hold' | 'charge';
  /** The state of the operation. */
  readonly state: HoldState;
  /** 1 for the first hold under this id. It grows by 1 each time the id is reserved again (see `renew`). */
  readonly generation: number;
  /** The scopes that it counts against. */
  readonly scopes: readonly string[];
  /** The amount that was reserved or charged. */
  readonly amount: Amount;
  /** The amount that was passed to `finalize`, or charged. 0 while the hold is not finalized. */
  readonly actual: Amount;
  /** The amount that counts as spent, before refunds: `actual`, unless `overage: 'cap'` reduced it. */
  readonly committed: Amount;
  /** The sum of its refunds. */
  readonly refunded: Amount;
  /** The part of the actual amount that exceeded a limit. */
  readonly uncovered: Amount;
  /** True if the hold was finalized or aborted after it had expired. */
  readonly late: boolean;
  /** When it was reserved or charged. */
  readonly createdAtMs: number;
  /** When the hold expires, and its amount is free again, unless it ends before. */
  readonly expiresAtMs: number;
  /** When it ended. Null while it is pending. */
  readonly endedAtMs: number | null;
  /** As passed to `reserve`. */
  readonly meta: unknown;
}

/** The request did not fit into every limit. Nothing was written, and the id stays free. */
export interface Exceeded {
  readonly ok: false;
  readonly reason: 'exceeded';
  /** The limits that have no room. */
  readonly violations: readonly Violation[];
  /**
   * When the request fits again without any other change: the first end of a window at which every limit has room. Null
   * if waiting does not help, because a limit is for a lifetime or is smaller than the request.
   */
  readonly retryAtMs: number | null;
  /** The time until `retryAtMs`, by the clock of the backend. */
  readonly retryAfterMs: number | null;
}

/** The operation was refused for `reason`, and nothing was written. */
export interface BudgetRefusal<Reason extends string> {
  readonly ok: false;
  /** Why it was refused. */
  readonly reason: Reason;
  /** The operation that is stored under this id. */
  readonly record: BudgetRecord;
}

/** Nothing is remembered under this id. */
export interface BudgetNotFound {
  readonly ok: false;
  readonly reason: 'not_found';
}

/** The id was used before, with other content. */
export interface BudgetConflict {
  readonly ok: false;
  readonly reason: 'conflict';
}

/** The amount is held for this operation: pass the result to `finalize` or `abort`. */
export interface Reserved extends Pick<
  BudgetRecord,
  'root' | 'id' | 'generation' | 'amount' | 'expiresAtMs'
> {
  readonly ok: true;
  readonly status: 'reserved';
  /** True if the same request was answered before. Nothing was counted a second time. */
  readonly replayed: boolean;
  /** The sums of each limit after this operation. */
  readonly balances: readonly Balance[];
  /** The thresholds that this operation reached. */
  readonly crossed: readonly Crossed[];
}

/** What `reserve()` returns. */
export type ReserveResult =
  | Reserved
  | Exceeded
  | BudgetRefusal<'conflict' | 'already_finalized' | 'already_aborted' | 'already_expired'>;

/** The amount is spent. */
export interface Charged
  extends Omit<Reserved, 'status' | 'generation' | 'expiresAtMs'>, Pick<BudgetRecord, 'uncovered'> {
  readonly status: 'charged';
}

/** What `charge()` returns. */
export type ChargeResult = Charged | Exceeded | BudgetRefusal<'conflict'>;

/** The hold has become a cost. */
export interface Finalized
  extends
    Omit<Reserved, 'status' | 'amount' | 'expiresAtMs'>,
    Pick<BudgetRecord, 'actual' | 'committed' | 'uncovered' | 'late'> {
  readonly status: 'finalized';
  /** The amount of the hold. */
  readonly reserved: Amount;
  /** The part of the hold that is free again. 0 if the hold had expired before. */
  readonly released: Amount;
  /** By how much `actual` exceeds the hold. */
  readonly overage: Amount;
}

/** What `finalize()` returns. */
export type FinalizeResult =
  Finalized | BudgetRefusal<'overage_rejected' | 'conflict' | 'aborted' | 'expired'> | BudgetNotFound;

/** The hold is gone, and nothing was spent. */
export interface Aborted extends Pick<Finalized, 'ok' | 'released' | 'replayed'> {
  readonly status: 'aborted';
}

/** What `abort()` returns. */
export type AbortResult =
  | Aborted
  /** `expired`: the hold is an older generation, which had expired. */
  | BudgetRefusal<'finalized' | 'expired'>
  | BudgetNotFound;

/** What `extend()` of a budget returns. */
export type ExtendHoldResult =
  | (Pick<Reserved, 'ok' | 'expiresAtMs'> & { readonly status: 'extended' })
  | BudgetRefusal<'finalized' | 'aborted' | 'expired'>
  | BudgetNotFound;

/** A part of what was spent is given back: `amount` by this refund, and `refunded` by all of the operation. */
export interface Refunded
  extends Pick<Reserved, 'ok' | 'amount' | 'replayed' | 'balances'>, Pick<BudgetRecord, 'refunded'> {
  readonly status: 'refunded';
}

/** What `refund()` returns. */
export type RefundResult =
  | Refunded
  | BudgetRefusal<'exceeds_committed' | 'pending' | 'aborted' | 'expired'>
  | BudgetConflict
  | BudgetNotFound;

/** What `credit()` returns. */
export type CreditResult =
  | (Pick<Reserved, 'ok' | 'replayed'> & {
      readonly status: 'credited';
      /** The sums of the limit after this credit. */
      readonly balance: Balance;
    })
  | BudgetConflict;

/** What `setLimit()` returns. */
export interface SetLimitResult {
  readonly ok: true;
  /** Whether a limit of its own was set, or the configured one counts again. */
  readonly status: 'set' | 'cleared';
}

/** One page of operations. */
export interface BudgetListResult {
  /** The operations of this page. */
  readonly records: readonly BudgetRecord[];
  /** Pass it to get the next page. Null: this was the last page. */
  readonly cursor: string | null;
}

/** What `reap()` returns. */
export interface ReapResult {
  /** The ids of holds that were found expired. Each is reported once. */
  readonly expired: readonly string[];
  /** How many ended operations and past windows were deleted. */
  readonly purged: number;
}

/** What `verify()` returns. */
export interface VerifyResult {
  /** Whether all sums are right, and everything can be read. */
  readonly ok: boolean;
  /** Descriptions of the sums that are wrong. Empty when `ok`. */
  readonly problems: readonly string[];
  /** What cannot be read. Empty when `ok`, and always in memory. */
  readonly quarantined: readonly Quarantined[];
}

/**
 * A record or counter in Redis that cannot be read, because something else has changed it. Operations go on without it.
 * What a record had reserved stays reserved until its window ends, or until `verify(root, { repair: true })`.
 */
export interface Quarantined {
  /** The field of the hash: `o|<id>`, `O|<generation>|<id>` or `c|<scope>|<period>|<start>`. */
  readonly field: string;
  /** What the record had reserved. Null if that cannot be read either. */
  readonly reserved: Amount | null;
}

/** Options of `verify()`. */
export interface VerifyOptions {
  /**
   * Lets go of what cannot be read: `reserved` becomes the sum of the pending holds, and a counter that cannot be read is
   * added up anew from the operations that are remembered. The result is that of the repaired root. Default: false.
   */
  repair?: boolean;
  /** Aborts the call. */
  signal?: AbortSignal;
}

/**
 * How `finalize` treats an actual amount that exceeds the hold. `record` commits all of it, because the money
 * is spent. `cap` commits the part that fits into the limits. `reject` refuses it and leaves the hold pending.
 */
export type OveragePolicy = 'record' | 'cap' | 'reject';

/**
 * How `finalize` treats a hold that has expired. `record` commits the amount. `if-available` commits it if it
 * fits into the limits. `reject` refuses it.
 */
export type LatePolicy = 'record' | 'if-available' | 'reject';

/** Options of `reserve()`. */
export interface ReserveOptions {
  /** The tenant that owns the scopes, 1 to 512 UTF-8 bytes. Default: `'default'`. */
  root?: string;
  /**
   * 1 to 32 scopes, each `type` or `type:id`, 1 to 512 UTF-8 bytes. The amount must fit into the limits of
   * all of them. If not, none is changed.
   */
  scopes: readonly string[];
  /** How much to hold. */
  amount: Amount;
  /**
   * Makes a retry safe: within `retentionMs` an id applies once. 1 to 512 UTF-8 bytes. Default: a random id.
   */
  id?: string;
  /**
   * Reserves again under an id whose hold ended without spending anything: it was aborted, or it expired and
   * was not finalized. The new hold has the next generation. Default: false, then such an id is refused.
   */
  renew?: boolean;
  /** How long the hold lasts unless it is extended, in ms, 1 to 2^31 - 1. Default: 60,000. */
  ttlMs?: number;
  /** Any JSON value of at most 1,024 bytes. `get` and `list` return it. */
  meta?: unknown;
  /** Aborts the call. What it has reserved meanwhile is given back. */
  signal?: AbortSignal;
}

/** Options of `charge()`. */
export interface ChargeOptions extends Pick<ReserveOptions, 'root' | 'scopes' | 'amount' | 'signal'> {
  /** Makes a retry safe: within `retentionMs` an id applies once. */
  id: string;
  /**
   * `enforce` refuses an amount that exceeds a limit. `record` commits it nevertheless, because it is already spent.
   * Default: `'enforce'`.
   */
  mode?: 'enforce' | 'record';
  /**
   * How long the id is kept, so that it applies once and refunds reach it. It is forgotten at the end of its last window at
   * the latest, but never before `retentionMs`. In ms, 1 to 400 days. Default: `budget.idTtlMs`, 24 hours.
   */
  idTtlMs?: number;
}

/** Options of `finalize()`. */
export interface FinalizeOptions {
  /** How an actual amount that exceeds the hold is treated. Default: `'record'`. */
  overage?: OveragePolicy;
  /** How a hold that has expired is treated. Default: `'record'`. */
  late?: LatePolicy;
  /** How long the id is kept, as of a charge. In ms, 1 to 400 days. Default: `budget.idTtlMs`, 24 hours. */
  idTtlMs?: number;
  /** Aborts the call. The hold may be finalized nevertheless. */
  signal?: AbortSignal;
}

/** Options of `credit()`. */
export interface CreditOptions extends Pick<ChargeOptions, 'root' | 'id' | 'signal'>, ByHand {
  /** The scope whose limit is raised. */
  scope: string;
  /** The period of the limit, as in `budget.limits`. */
  period: Period;
  /** The amount that is added to the limit of the open window. */
  amount: Amount;
}

/** Options of `setLimit()`. */
export interface SetLimitOptions extends Omit<CreditOptions, 'amount' | 'id'> {
  /** The new limit. It takes precedence over the configured limit. Null clears it again. */
  limit: Amount | 'unlimited' | null;
}

/** Options of `balances()`. */
export interface BalancesOptions extends PageOptions {
  /** The root of the scopes. Default: `'default'`. */
  root?: string;
  /** Only scopes of this type: `'user'` for `user:42` and all others. Default: all. */
  type?: string;
}

/** Options of `list()`. */
export interface BudgetListOptions extends Pick<ReserveOptions, 'root' | 'signal'> {
  /** Only operations in this state. Default: all. */
  state?: HoldState;
  /** Only operations of this scope. Default: all. */
  scope?: string;
  /** The `cursor` of the page before. Default: the first page. */
  cursor?: string | null;
  /** About how many operations to read, 1 to 1,000. A page may have fewer or a few more. Default: 100. */
  limit?: number;
}

/** Options of `reap()`. */
export interface ReapOptions extends Pick<ReserveOptions, 'root' | 'signal'> {
  /** How many holds and records to process at most, 1 to 100,000. Default: 1,000. */
  max?: number;
}
