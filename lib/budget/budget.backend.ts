import type { pageOfNames, ResolvedPageOptions } from '../core/page.js';
import type * as budget from './budget.types.js';

export interface ConfiguredLimit {
  readonly period: budget.Period;
  readonly limit: budget.Amount | 'unlimited';
  readonly thresholds: readonly number[];
  /** True if the limit is set for the type of the scope (`user`) and not for the scope itself (`user:42`). */
  readonly inherited: boolean;
}

export interface LimitedScope {
  readonly scope: string;
  readonly limits: readonly ConfiguredLimit[];
}

export interface Request {
  readonly root: string;
  readonly signal?: AbortSignal | undefined;
}

/**
 * A call whose result lists the thresholds that it crossed. These two functions let the caller report each threshold
 * once, even if the answer comes late or the command was sent a second time.
 */
interface CrossingRequest {
  /** Called when the answer arrives after the call has rejected with a timeout or an abort. */
  onLate?(outcome: Answer | { readonly ok: false }): void;
  /**
   * Called when the command was sent a second time. A `replayed` in the result then does not say whether this call did
   * the work, because its first send may have.
   */
  onResent?(): void;
}

/** A call about one hold of an id. It finds only a hold of this generation and this nonce. */
export interface HoldRequest extends Request {
  readonly id: string;
  /** 0: the newest. */
  readonly generation: number;
  /** The nonce of the call that created the hold. '-' matches every hold. */
  readonly nonce: string;
}

/**
 * How a reserve treats a hold that already has the id. `reserve` returns a pending hold again, and refuses an ended one.
 * `renew` also creates a new hold if the old one ended without spending. `run` is `renew`, but refuses a pending hold,
 * because its work is being done elsewhere. In every mode a second send finds its own hold.
 */
export type ReserveMode = 'reserve' | 'renew' | 'run';

/** An operation after a step that was done, or that was done before (`replayed`). */
export interface Answer extends Omit<budget.BudgetRecord, 'scopes' | 'meta'> {
  readonly ok: true;
  /**
   * The nonce of the call that created the hold. Once an operation was purged, its id can be used again, and generations
   * start at 1 again. The nonce keeps a very late call for the old hold from settling the new one.
   */
  readonly nonce: string;
  readonly replayed: boolean;
  /** The sums in which it counts, after the step. */
  readonly balances: readonly budget.Balance[];
  /** The thresholds that the operation has crossed. */
  readonly crossed: readonly budget.Crossed[];
  /** True where a sum has stopped at the largest amount, because what is spent is never refused. */
  readonly isAtMax: boolean;
}

/** What a backend answers where the caller gets `Result`: the operation, or the same refusal. */
export type Outcome<Result extends { readonly ok: boolean }> =
  Answer | Exclude<Result, { readonly ok: true }>;

/** Only with mode `run`: another call has a pending hold under the id. */
export interface AlreadyRunning extends budget.BudgetRefusal<'pending'> {
  /** How long that hold lasts unless it is extended, by the clock of the backend. */
  readonly endsInMs: number;
}

/** What becomes of a reservation. */
export type ReserveOutcome = budget.ReserveResult | AlreadyRunning;

/** An amount that counts in scopes. */
interface SpendingRequest extends Request, CrossingRequest {
  readonly id: string;
  readonly scopes: readonly LimitedScope[];
  readonly amount: budget.Amount;
}

export interface ReserveRequest extends SpendingRequest {
  readonly ttlMs: number;
  /** JSON, or '' if there is none. */
  readonly meta: string;
  readonly mode: ReserveMode;
  /**
   * A random value of this call, so that a command which is sent again finds the hold that it created. '-'
   * where the id itself is random.
   */
  readonly nonce: string;
}

export type ChargeRequest = SpendingRequest & Required<Pick<budget.ChargeOptions, 'mode' | 'idTtlMs'>>;

export interface FinalizeRequest
  extends HoldRequest, CrossingRequest, Required<Omit<budget.FinalizeOptions, 'signal'>> {
  readonly actual: budget.Amount;
}

export type ExtendRequest = HoldRequest & Pick<ReserveRequest, 'ttlMs'>;

export interface RefundRequest extends HoldRequest, Pick<SpendingRequest, 'amount'> {
  readonly refundId: string;
}

export interface BalanceRequest extends Request {
  readonly scope: LimitedScope;
}

/** With the one limit that the credit is added to. */
export type CreditRequest = BalanceRequest & Pick<SpendingRequest, 'id' | 'amount'>;

/** With the one limit that is replaced. */
export type SetLimitRequest = BalanceRequest & Pick<budget.SetLimitOptions, 'limit'>;

export interface ListRequest extends Request {
  readonly cursor: string | null;
  readonly limit: number;
}

export interface ReapRequest extends Request {
  readonly max: number;
  /** Called when the answer comes after the call has rejected. Its expired holds are reported nowhere else. */
  onLate?(step: ReapStep): void;
}

export type VerifyRequest = Request & Pick<budget.VerifyOptions, 'repair'>;

export interface ReapStep extends budget.ReapResult {
  /** Records that could not be read and were set aside. Each is reported once. */
  readonly quarantined: readonly budget.Quarantined[];
  /** In how many ms the next `reap` is needed. 0: at once. Null: not before the next operation. */
  readonly nextInMs: number | null;
}

type PageOfNames = ReturnType<typeof pageOfNames>;

/**
 * The port of budgets. Each method is one atomic step on validated input, by the clock of the backend.
 * Expired holds are left out of every sum. Business outcomes are values. Faults reject with a
 * BudgetUnavailableError, and a sum that would pass the largest amount with a BudgetInputError.
 */
export interface BudgetBackend {
  reserve(request: ReserveRequest): Promise<Outcome<ReserveOutcome>>;
  charge(request: ChargeRequest): Promise<Outcome<budget.ChargeResult>>;
  finalize(request: FinalizeRequest): Promise<Outcome<budget.FinalizeResult>>;
  abort(request: HoldRequest): Promise<Outcome<budget.AbortResult>>;
  extend(request: ExtendRequest): Promise<Outcome<budget.ExtendHoldResult>>;
  refund(request: RefundRequest): Promise<Outcome<budget.RefundResult>>;
  credit(request: CreditRequest): Promise<budget.CreditResult>;
  setLimit(request: SetLimitRequest): Promise<budget.SetLimitResult>;
  balance(request: BalanceRequest): Promise<budget.Balance[]>;
  get(request: HoldRequest): Promise<budget.BudgetRecord | null>;
  list(request: ListRequest): Promise<budget.BudgetListResult>;
  reap(request: ReapRequest): Promise<ReapStep>;
  verify(request: VerifyRequest): Promise<budget.VerifyResult>;
  /** Returns roots of which anything is kept. */
  allRoots(page: ResolvedPageOptions): Promise<PageOfNames>;
  /** Returns scopes of a root that have a window. One may be on several pages, and several times on one. */
  scopes(root: string, page: ResolvedPageOptions): Promise<PageOfNames>;
  /** Takes roots that are due to be reaped, for one process of all. They are due again at `untilMs`. */
  roots(request: RootsRequest): Promise<{ readonly untilMs: number; readonly roots: readonly string[] }>;
}

/** The processes share a registry of the roots in use, so that one reaps what another that has died has left. */
export interface RootsRequest {
  /** Roots that were used. Each is due within `everyMs`. */
  readonly used: readonly string[];
  /** What became of roots that were taken until `untilMs`. Where `nextInMs` is null, nothing is left of them. */
  readonly reaped: readonly { root: string; untilMs: number; nextInMs: number | null }[];
  readonly max: number;
  readonly everyMs: number;
}
