import type { Page, ResolvedPageOptions } from '../core/page.js';
import { IN_FLIGHT_MS, MAX_SLACK_MS, SLACK_WINDOWS } from './limit.times.js';
import type {
  AllowedDecision,
  BlockedKey,
  BlockTag,
  CountedCalls,
  DeniedDecision,
  FoundAttempts,
  LimitAlgorithm,
} from './limit.types.js';

/** The most limits that one call is counted against. */
export const MAX_CHECKS = 8;

/** One window of a policy. */
export interface TierRules {
  readonly windowMs: number;
  /** The attempt with this number is denied. 0 and Infinity stand for a limit of 0 and for none, at a cost of 0. */
  readonly threshold: number;
  /** If 0, there is no block, and a denied call is not counted. */
  readonly blockMs: number;
}

/** The numbers of a policy, as backends use them. */
export interface LimitRules {
  /** The short tier, which users write as `temp`, or as `limit` and `windowMs`. After it the long one, if there is one. */
  readonly tiers: readonly [TierRules, ...TierRules[]];
  readonly factor: number;
  readonly maxBlockMs: number;
  /** How long penalties are kept after a block has ended. */
  readonly penaltiesTtlMs: number;
}

/** What a backend needs of a policy. */
export interface CountedPolicy {
  readonly name: string;
  readonly algorithm: LimitAlgorithm;
  readonly rules: LimitRules;
  readonly count: CountedCalls;
  /** Whether the rules are known at boot and never change, so that a backend may make a script for them. */
  readonly isStatic: boolean;
  /** Whether a function has raised the limit above what a log holds. Then the log's block holds for the fixed window too. */
  readonly isRaised?: boolean;
}

/** A policy, and whom it counts. */
export interface Subject<Policy extends CountedPolicy = CountedPolicy> {
  /** The policy's name, a NUL and the normalized key. Calls with the same identity are counted together. */
  readonly identity: string;
  readonly policy: Policy;
}

export interface LimitCheck<Policy extends CountedPolicy = CountedPolicy> extends Subject<Policy> {
  /**
   * How much the call counts, already checked: 1 to 1,000, in a fixed window up to its limit. If 0, the call is not
   * counted: it costs nothing, or the limit is 0 or unlimited. Then only a block denies it, or a limit of 0.
   */
  readonly cost: number;
}

export type BackendDecision = BackendAllowed | BackendDenied;

export interface BackendAllowed extends LimitCounts {
  readonly status: 'allowed';
  /** How long until the short window is empty again, in ms. */
  readonly resetMs: number;
  /** Of a peek: nothing is remembered about the key. */
  readonly isUnknown?: true;
}

export interface BackendDenied extends LimitCounts, Pick<DeniedDecision, 'scope' | 'reason'> {
  readonly status: 'denied';
  /** In ms, at least 1. */
  readonly retryAfterMs: number;
  /** Whether there is a block, which denies every call until it ends. */
  readonly blocked: boolean;
  /** Whether this call has set the block, or may have. */
  readonly isNew?: boolean;
}

export type LimitCounts = Pick<AllowedDecision, 'shortCount' | 'longCount'>;

export interface CallOptions {
  /** Whether time in which the event loop was late counts against Redis. Default: it does. */
  sparesLoop?: boolean | undefined;
  timeoutMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** Which page of blocks is wanted, and of which policy. */
export type BlockedPage = ResolvedPageOptions & { readonly policy: string | undefined };

export interface ConfirmOptions extends CallOptions {
  /** Whether the call may set a block. Without, it only fills the window. Default: true. */
  blocks?: boolean | undefined;
}

/** The length of the random part of a call's id. After it the id may have the route of the call. */
export const CALL_ID_LENGTH = 8;

/** The counts of the tiers, in their order. */
export const countsIn = ({ shortCount, longCount }: LimitCounts): [number, number] => [shortCount, longCount];

/** The long tier's window is never the shorter one. */
export const longestWindowMs = ({ tiers }: LimitRules): number =>
  (tiers[tiers.length - 1] as TierRules).windowMs;

/** How long a log with calls in flight is kept, in ms. */
export const keepMs = (rules: LimitRules): number => longestWindowMs(rules) + IN_FLIGHT_MS;

const slackMs = (rules: LimitRules): number => Math.min(SLACK_WINDOWS * longestWindowMs(rules), MAX_SLACK_MS);

/** How long a log of attempts alone is kept, in ms. */
export const keepAttemptsMs = (rules: LimitRules): number => longestWindowMs(rules) + slackMs(rules);

/** A log of attempts alone that is kept for less is kept anew, once half of its slack is used up. */
export const renewAttemptsMs = (rules: LimitRules): number => longestWindowMs(rules) + slackMs(rules) / 2;

/**
 * The limiter's port. Each method is one atomic step, except for a check of several limits on a Cluster. `callId` names
 * one call: the same call sent again does not count again, except in a fixed window. Every fault is a LimitError.
 */
export interface LimitBackend {
  readonly backend: 'redis' | 'memory';
  /**
   * Counts a call against all of its limits. If one of them denies the call, those that allow it do not count it, and those
   * that deny it count it only if it sets their block. A policy that counts failures or successes keeps the call as in
   * flight. The decisions come in the order of `checks`.
   */
  check(checks: readonly LimitCheck[], callId: string, options?: CallOptions): Promise<BackendDecision[]>;
  /**
   * Counts a call in flight that has ended with the outcome that its policy counts: a failure, or a success. The
   * decision is denied if the call has set a block, or if there is a block already.
   */
  confirm(check: LimitCheck, callId: string, options?: ConfirmOptions): Promise<BackendDecision>;
  /** Keeps a call in flight for another `IN_FLIGHT_MS`. A flight that nobody renews lapses: the call counts. */
  renew(check: LimitCheck, callId: string, options?: CallOptions): Promise<void>;
  /**
   * Takes one call back. Every withdrawal lowers the count of a fixed window, which must have counted the call.
   *
   * @param forget - also forgets what its route has counted before it, and the strikes if only that route has set
   * blocks. Forgets nothing while there is a block.
   */
  withdraw(check: LimitCheck, callId: string, forget: boolean, options?: CallOptions): Promise<void>;
  /** Returns the decision that a call of this cost would get now. Counts nothing. */
  peek(check: LimitCheck, options?: CallOptions): Promise<BackendDecision>;
  // What these do is said at the service's methods of the same names.
  forgive(subject: Subject, count: number, callId: string, options?: CallOptions): Promise<FoundAttempts>;
  reset(subject: Subject, options?: CallOptions): Promise<FoundAttempts>;
  block(subject: Subject, blockMs: number, reason: string, options?: CallOptions): Promise<void>;
  unblock(subject: Subject, options?: CallOptions): Promise<FoundAttempts>;
  /**
   * Notes a block that a call has set, for as long as it lasts: whose it is, so that `blocked` can say so, and under its account, so
   * that `lift` finds it.
   */
  note(identity: string, blockMs: number, options?: CallOptions): Promise<void>;
  /**
   * Removes what is counted under the account, of each identity that has been noted and is blocked, and not by hand. Returns
   * how many these were.
   */
  lift(account: string, options?: CallOptions): Promise<number>;
  blocked(page: BlockedPage): Promise<Page<BlockedKey>>;
  /** Returns how many blocks it has ended. */
  unblockTagged(which: BlockTag, options?: CallOptions): Promise<number>;
  /**
   * Counts at least what Redis has said last about a key, `agoMs` ago: a full key stays full, a block stays a block. Only the
   * backend in memory has it, which counts while Redis does not answer.
   */
  goOnFrom?(subject: Subject, last: BackendDecision, agoMs: number): void;
}

/** Returns whether a peek has found anything. A limit that counts nothing remembers blocks only. */
export const isOfKnown = (policy: Pick<CountedPolicy, 'rules'>, reply: BackendDecision): boolean =>
  reply.status === 'denied'
    ? reply.blocked || reply.shortCount > 0
    : !reply.isUnknown && !isUncounted(policy);

/** Returns whether a limit is 0 or unlimited, so that no call is counted against it. */
export const isUncounted = ({ rules }: Pick<CountedPolicy, 'rules'>): boolean => {
  const [{ threshold }] = rules.tiers;
  return threshold === 0 || threshold === Infinity;
};
