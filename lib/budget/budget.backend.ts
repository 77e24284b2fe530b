import type { LimitedScope } from './budget.limits.js';
import type {
  AbortResult,
  Balance,
  BudgetRecord,
  ChargeResult,
  CreditResult,
  ExtendHoldResult,
  FinalizeResult,
  LatePolicy,
  OveragePolicy,
  Period,
  ReapResult,
  RefundResult,
  ReserveResult,
  SetLimitResult,
  VerifyResult,
} from './budget.types.js';

interface Request {
  readonly root: string;
  readonly signal?: AbortSignal | undefined;
}

interface OperationRequest extends Request {
  readonly id: string;
}

export interface ReserveRequest extends OperationRequest {
  readonly scopes: readonly LimitedScope[];
  readonly amount: bigint;
  readonly ttlMs: number;
  /** JSON, or '' for none. */
  readonly meta: string;
}

export interface ChargeRequest extends OperationRequest {
  readonly scopes: readonly LimitedScope[];
  readonly amount: bigint;
  readonly mode: 'enforce' | 'record';
}

export interface FinalizeRequest extends OperationRequest {
  readonly actual: bigint;
  readonly overage: OveragePolicy;
  readonly late: LatePolicy;
}

export interface ExtendRequest extends OperationRequest {
  readonly ttlMs: number;
}

export interface RefundRequest extends OperationRequest {
  readonly amount: bigint;
  readonly refundId: string;
}

export interface CreditRequest extends OperationRequest {
  readonly scope: LimitedScope;
  readonly period: Period;
  readonly amount: bigint;
}

export interface SetLimitRequest extends Request {
  readonly scope: string;
  readonly period: Period;
  /** null: back to what is configured. */
  readonly limit: bigint | 'unlimited' | null;
}

export interface BalanceRequest extends Request {
  readonly scope: LimitedScope;
}

export interface ListRequest extends Request {
  readonly cursor: string | null;
  readonly limit: number;
}

export interface ReapRequest extends Request {
  readonly max: number;
  /** The step's answer came after the caller had been told of a timeout or an abort: what it tells is told once. */
  onLate?(step: ReapStep): void;
}

/** What one step of `reap` came to. */
export interface ReapStep extends ReapResult {
  /** In how many ms there is something to do again: 0 at once, null never as things stand. */
  readonly nextInMs: number | null;
}

/**
 * The budget's port: each method is one atomic decision on validated input, at the backend's own time. Holds
 * whose time is up are out of every number it tells. Outcomes are values; faults reject with a
 * BudgetUnavailableError, a scope that nobody limits with a BudgetInputError.
 */
export interface BudgetBackend {
  reserve(request: ReserveRequest): Promise<ReserveResult<bigint>>;
  charge(request: ChargeRequest): Promise<ChargeResult<bigint>>;
  finalize(request: FinalizeRequest): Promise<FinalizeResult<bigint>>;
  abort(request: OperationRequest): Promise<AbortResult<bigint>>;
  extend(request: ExtendRequest): Promise<ExtendHoldResult<bigint>>;
  refund(request: RefundRequest): Promise<RefundResult<bigint>>;
  credit(request: CreditRequest): Promise<CreditResult<bigint>>;
  setLimit(request: SetLimitRequest): Promise<SetLimitResult>;
  balance(request: BalanceRequest): Promise<Balance<bigint>[]>;
  get(request: OperationRequest): Promise<BudgetRecord<bigint> | null>;
  list(request: ListRequest): Promise<{ records: BudgetRecord<bigint>[]; cursor: string | null }>;
  /** Expires, tells and forgets at most about `max`. */
  reap(request: ReapRequest): Promise<ReapStep>;
  verify(request: Request): Promise<VerifyResult>;
  /** Where other processes share the budgets. */
  readonly roots?: BudgetRoots | undefined;
}

/**
 * The roots in use, as all processes know them: what one leaves behind when it dies, another one reaps. For each there
 * is a moment, by the backend's clock, at which a process has last said that it looks after it.
 */
export interface BudgetRoots {
  share(request: ShareRequest): Promise<{ readonly atMs: number; readonly adopted: readonly string[] }>;
}

export interface ShareRequest {
  /** Roots that this process looks after. */
  readonly kept: readonly string[];
  /** Roots that were adopted at that moment, with nothing in them: forgotten, unless somebody has kept them since. */
  readonly done?: ReadonlyMap<string, number>;
  /** Take over at most `max` roots that nobody has kept for `afterMs`. */
  readonly adopt?: { readonly max: number; readonly afterMs: number };
}
