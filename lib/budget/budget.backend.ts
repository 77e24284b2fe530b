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

/** A step whose answer tells of thresholds, also where it does not come as an answer to this very call. */
interface CrossingRequest<Result> {
  /** The answer came after the caller had been told of a timeout or an abort. */
  onLate?(result: Result): void;
  /** The answer may be that to a second run of the same command: `replayed` says nothing then. */
  onResent?(): void;
}

interface OperationRequest extends Request {
  readonly id: string;
}

/** A step of one hold: of this generation (0: the newest), made by the call with this nonce ('-': by any). */
export interface HoldRequest extends OperationRequest {
  readonly generation: number;
  readonly nonce: string;
}

/**
 * What a hold under the same id means to a reserve. `reserve`: it is the answer, whatever became of it. `renew`: one
 * that spent nothing is followed by a new one. `run`: as `renew`, and one that is pending is somebody else's work.
 */
export type ReserveMode = 'reserve' | 'renew' | 'run';

/** With mode `run` only: the id is pending, and not by this call. */
export interface RunsElsewhere {
  readonly ok: false;
  readonly reason: 'pending';
  readonly record: BudgetRecord<bigint>;
  /** When its hold ends as things stand, from the backend's now. */
  readonly endsInMs: number;
}

export type AbortOutcome =
  | (Extract<AbortResult<bigint>, { ok: true }> & { readonly generation: number })
  | Extract<AbortResult<bigint>, { ok: false }>;

export type ReserveOutcome = ReserveResult<bigint> | RunsElsewhere;

export interface ReserveRequest extends OperationRequest, CrossingRequest<ReserveOutcome> {
  readonly scopes: readonly LimitedScope[];
  readonly amount: bigint;
  readonly ttlMs: number;
  /** JSON, or '' for none. */
  readonly meta: string;
  readonly mode: ReserveMode;
  /** Of this call: by it a command that is sent again knows its own hold. '-' where the id is the call's own. */
  readonly nonce: string;
}

export interface ChargeRequest extends OperationRequest, CrossingRequest<ChargeResult<bigint>> {
  readonly scopes: readonly LimitedScope[];
  readonly amount: bigint;
  readonly mode: 'enforce' | 'record';
}

export interface FinalizeRequest extends HoldRequest, CrossingRequest<FinalizeResult<bigint>> {
  readonly actual: bigint;
  readonly overage: OveragePolicy;
  readonly late: LatePolicy;
}

export interface ExtendRequest extends HoldRequest {
  readonly ttlMs: number;
}

export interface RefundRequest extends HoldRequest {
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
  reserve(request: ReserveRequest): Promise<ReserveOutcome>;
  charge(request: ChargeRequest): Promise<ChargeResult<bigint>>;
  finalize(request: FinalizeRequest): Promise<FinalizeResult<bigint>>;
  abort(request: HoldRequest): Promise<AbortOutcome>;
  extend(request: ExtendRequest): Promise<ExtendHoldResult<bigint>>;
  refund(request: RefundRequest): Promise<RefundResult<bigint>>;
  credit(request: CreditRequest): Promise<CreditResult<bigint>>;
  setLimit(request: SetLimitRequest): Promise<SetLimitResult>;
  balance(request: BalanceRequest): Promise<Balance<bigint>[]>;
  get(request: HoldRequest): Promise<BudgetRecord<bigint> | null>;
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
