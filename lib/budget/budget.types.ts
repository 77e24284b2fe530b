/**
 * A non-negative integer in minor units (cents, tokens): a safe integer, or a bigint up to 2^63 - 1. Results
 * come as bigint where the call's amount was one or the value is not a safe integer, else as number.
 */
export type Amount = number | bigint;

/**
 * What a limit is counted over. `windowMs` windows start at multiples of it since the epoch. No job resets
 * anything: a window is named by its start, so the next one begins at nothing by itself.
 */
export type Period = 'lifetime' | CalendarPeriod | { readonly windowMs: number };

export interface CalendarPeriod {
  readonly every: 'hour' | 'day' | 'week' | 'month' | 'year';
  /** IANA time zone whose wall clock and calendar count: `'Europe/Berlin'`. Default: `'UTC'`. */
  readonly tz?: string;
  /**
   * Where in its unit the period starts. Hour: minute, 0-59, default 0. Day: hour, 0-23, default 0. Week: day,
   * 1 (Monday) to 7, default 1. Month: day, 1-31 (in a shorter month its last day), default 1. Year: month,
   * 1-12, default 1.
   */
  readonly anchor?: number;
}

/** [startMs, endMs): the end is the next window's start. A lifetime has no end. */
export interface BudgetWindow {
  readonly startMs: number;
  readonly endMs: number | null;
}

export interface BudgetLimit {
  /** `'user'` for every user, `'user:42'` for one (it beats `'user'`, period by period), `'org'` for the one org. */
  scope: string;
  period: Period;
  /** 0 blocks; `'unlimited'` counts without limiting. */
  limit: Amount | 'unlimited';
  /** Percentages, 1 to 1,000, that are reported once a window in `crossed`. Default: none. */
  thresholds?: readonly number[];
}

/** Names an operation: a result of `reserve` or `charge`, or what was given there. */
export interface BudgetRef {
  /** Default: `'default'`. */
  root?: string;
  id: string;
  /**
   * Which of the holds that followed each other under the id, as their results say, 1 to 2^53 - 1. A step of an older
   * one never touches the newest. Default: the newest.
   */
  generation?: number;
}

/** The state of one (scope, period) in its window. `available` is max(0, limit + credits - committed - reserved). */
export interface Balance<A extends Amount = Amount> {
  readonly scope: string;
  readonly period: Period;
  readonly window: BudgetWindow;
  readonly limit: A | 'unlimited';
  readonly credits: A;
  readonly committed: A;
  readonly reserved: A;
  readonly available: A | 'unlimited';
}

/** A threshold that this very step reached for the first time in its window. */
export interface Crossed {
  readonly scope: string;
  readonly period: Period;
  readonly percent: number;
}

/** A limit that had no room. */
export interface Violation<A extends Amount = Amount> {
  readonly scope: string;
  readonly period: Period;
  readonly limit: A | 'unlimited';
  readonly committed: A;
  readonly reserved: A;
  readonly available: A | 'unlimited';
  readonly requested: A;
  /** When its window ends; null for a lifetime. */
  readonly resetAtMs: number | null;
}

export type HoldState = 'pending' | 'finalized' | 'aborted' | 'expired';

/** An operation as it is remembered until `retentionMs` after its end. */
export interface BudgetRecord<A extends Amount = Amount> {
  readonly root: string;
  readonly id: string;
  readonly kind: 'hold' | 'charge';
  readonly state: HoldState;
  /** Which of the holds that followed each other under this id. */
  readonly generation: number;
  readonly scopes: readonly string[];
  /** What was reserved or charged. */
  readonly amount: A;
  /** What `finalize` was told; 0 before. */
  readonly actual: A;
  /** What was counted as spent, before refunds. */
  readonly committed: A;
  readonly refunded: A;
  /** What of the actual amount no limit had room for. */
  readonly uncovered: A;
  /** It was finalized or aborted after it had expired. */
  readonly late: boolean;
  readonly createdAtMs: number;
  readonly expiresAtMs: number;
  readonly endedAtMs: number | null;
  /** As given to `reserve`. */
  readonly meta: unknown;
}

/** No limit was touched: nothing was written, nothing is remembered. */
export interface Exceeded<A extends Amount = Amount> {
  readonly ok: false;
  readonly reason: 'exceeded';
  readonly violations: readonly Violation<A>[];
  /**
   * When the same request could fit by the mere passing of time: the latest end among the windows in its way.
   * Null when waiting does not help: a lifetime, or more than a whole window's limit.
   */
  readonly retryAtMs: number | null;
  /** How long that is from now, by the clock that decided. */
  readonly retryAfterMs: number | null;
}

interface Refused<Reason extends string, A extends Amount> {
  readonly ok: false;
  readonly reason: Reason;
  /** The operation that is remembered under this id. */
  readonly record: BudgetRecord<A>;
}

interface NotFound {
  readonly ok: false;
  readonly reason: 'not_found';
}

/** The id was used before, for other content. */
interface Conflict {
  readonly ok: false;
  readonly reason: 'conflict';
}

export interface Reserved<A extends Amount = Amount> {
  readonly ok: true;
  readonly status: 'reserved';
  readonly root: string;
  readonly id: string;
  /** 1, and one more each time that an id is reserved anew: see `renew`. */
  readonly generation: number;
  readonly amount: A;
  /** From this instant on the amount is free again. */
  readonly expiresAtMs: number;
  /** The id had already done this: nothing was reserved a second time. */
  readonly replayed: boolean;
  readonly balances: readonly Balance<A>[];
  readonly crossed: readonly Crossed[];
}

export type ReserveResult<A extends Amount = Amount> =
  | Reserved<A>
  | Exceeded<A>
  | Refused<'conflict' | 'already_finalized' | 'already_aborted' | 'already_expired', A>;

export interface Charged<A extends Amount = Amount> {
  readonly ok: true;
  readonly status: 'charged';
  readonly root: string;
  readonly id: string;
  readonly amount: A;
  /** With `mode: 'record'`: what no limit had room for. */
  readonly uncovered: A;
  readonly replayed: boolean;
  readonly balances: readonly Balance<A>[];
  readonly crossed: readonly Crossed[];
}

export type ChargeResult<A extends Amount = Amount> = Charged<A> | Exceeded<A> | Refused<'conflict', A>;

export interface Finalized<A extends Amount = Amount> {
  readonly ok: true;
  readonly status: 'finalized';
  readonly root: string;
  readonly id: string;
  readonly generation: number;
  /** What the hold had reserved. */
  readonly reserved: A;
  readonly actual: A;
  /** What was counted as spent: `actual`, unless `overage: 'cap'` cut it. */
  readonly committed: A;
  /** What of the hold went back; 0 when it had gone back by expiry. */
  readonly released: A;
  /** How far `actual` went over the hold. */
  readonly overage: A;
  /** What of `actual` no limit had room for. */
  readonly uncovered: A;
  /** It came after the hold had expired. */
  readonly late: boolean;
  readonly replayed: boolean;
  readonly balances: readonly Balance<A>[];
  readonly crossed: readonly Crossed[];
}

export type FinalizeResult<A extends Amount = Amount> =
  Finalized<A> | Refused<'overage_rejected' | 'conflict' | 'aborted' | 'expired', A> | NotFound;

export type AbortResult<A extends Amount = Amount> =
  | {
      readonly ok: true;
      readonly status: 'aborted';
      /** What went back; 0 when it had gone back by expiry. */
      readonly released: A;
      readonly replayed: boolean;
    }
  /** `expired`: an older generation, whose hold had gone back by itself. */
  | Refused<'finalized' | 'expired', A>
  | NotFound;

export type ExtendHoldResult<A extends Amount = Amount> =
  | { readonly ok: true; readonly status: 'extended'; readonly expiresAtMs: number }
  | Refused<'finalized' | 'aborted' | 'expired', A>
  | NotFound;

export type RefundResult<A extends Amount = Amount> =
  | {
      readonly ok: true;
      readonly status: 'refunded';
      readonly amount: A;
      /** All refunds of this operation together. */
      readonly refunded: A;
      readonly replayed: boolean;
      readonly balances: readonly Balance<A>[];
    }
  | Refused<'exceeds_committed' | 'pending' | 'aborted' | 'expired', A>
  | Conflict
  | NotFound;

export type CreditResult<A extends Amount = Amount> =
  | {
      readonly ok: true;
      readonly status: 'credited';
      readonly replayed: boolean;
      readonly balance: Balance<A>;
    }
  | Conflict;

export interface SetLimitResult {
  readonly ok: true;
  readonly status: 'set' | 'cleared';
}

export interface BudgetListResult<A extends Amount = Amount> {
  readonly records: readonly BudgetRecord<A>[];
  /** Pass it to get the next page; null: this was the last one. */
  readonly cursor: string | null;
}

export interface ReapResult {
  /** Ids of the holds that were found expired, each told once. */
  readonly expired: readonly string[];
  /** How many ended operations and past windows were forgotten. */
  readonly purged: number;
}

export interface VerifyResult {
  readonly ok: boolean;
  /** What does not add up, in words; empty when `ok`. */
  readonly problems: readonly string[];
}

/** `record`: all of it is counted, the money is spent. `cap`: as much as there is room for. `reject`: the hold stays. */
export type OveragePolicy = 'record' | 'cap' | 'reject';

/** `record`: the late amount is counted. `if-available`: only if there is room for it. `reject`: not at all. */
export type LatePolicy = 'record' | 'if-available' | 'reject';

export interface ReserveOptions {
  /** The tenant that owns the tree of scopes, 1 to 512 UTF-8 bytes. Default: `'default'`. */
  root?: string;
  /** 1 to 32 scopes, each `type` or `type:id`, 1 to 512 UTF-8 bytes: all of them have room, or none is touched. */
  scopes: readonly string[];
  amount: Amount;
  /** Makes a retry safe: within `retentionMs` an id applies once. 1 to 512 UTF-8 bytes. Default: a random one. */
  id?: string;
  /**
   * Reserve anew where the id's hold has ended and nothing was spent: it was aborted, or has expired and was not
   * finalized. The new hold has the next generation. Default: false; then such an id is refused.
   */
  renew?: boolean;
  /** When the hold goes back by itself, in ms, 1 to 2^31 - 1. Default: 60,000. */
  ttlMs?: number;
  /** A JSON value of yours, at most 1,024 bytes, that `get` and `list` give back. */
  meta?: unknown;
  signal?: AbortSignal;
}

export interface ChargeOptions {
  root?: string;
  scopes: readonly string[];
  amount: Amount;
  /** Makes a retry safe: within `retentionMs` an id applies once. */
  id: string;
  /** `enforce` refuses what does not fit; `record` counts what is already spent. Default: `'enforce'`. */
  mode?: 'enforce' | 'record';
  signal?: AbortSignal;
}

export interface FinalizeOptions {
  /** When the actual amount is more than the hold. Default: `'record'`. */
  overage?: OveragePolicy;
  /** When the hold has expired. Default: `'record'`. */
  late?: LatePolicy;
  signal?: AbortSignal;
}

export interface CreditOptions {
  root?: string;
  scope: string;
  period: Period;
  /** Added to the limit of the window that is open now. */
  amount: Amount;
  id: string;
  signal?: AbortSignal;
}

export interface SetLimitOptions {
  root?: string;
  scope: string;
  period: Period;
  /** Beats the configured limit until it is cleared with null. */
  limit: Amount | 'unlimited' | null;
  signal?: AbortSignal;
}

export interface BudgetListOptions {
  root?: string;
  state?: HoldState;
  scope?: string;
  cursor?: string | null;
  /** About how many operations to look at, 1 to 1,000; a page may hold fewer, or a few more. Default: 100. */
  limit?: number;
  signal?: AbortSignal;
}

export interface ReapOptions {
  root?: string;
  /** How many to expire and to forget at most, 1 to 100,000. Default: 1,000. */
  max?: number;
  signal?: AbortSignal;
}
