import { refuseAborted } from '../../core/abort.js';
import { type Clock, systemClock } from '../../core/clock.js';
import { type Attempt, AttemptLog } from './attempt-log.js';
import { FixedWindow } from './fixed-window.js';
import { LedgerStore } from './ledger-store.js';
import {
  type CountedPolicy,
  type CallOptions,
  type LimitBackend,
  type LimitCheck,
  type LimitCounts,
  type BackendDecision,
  type Subject,
  type LimitRules,
} from '../limit.backend.js';
import { LimitError } from '../limit.errors.js';
import type { LimitScope } from '../limit.types.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from '../limit.times.js';

interface Block {
  readonly scope: LimitScope;
  readonly reason: string;
  readonly shortCount: number;
  readonly longCount: number;
  readonly endsAtMs: number;
}

/**
 * The traces that blocks of one identity leave behind. A tier's strikes are the number of its blocks. Attempts up to a tier's
 * floor no longer count for that tier, because a block has been set for them.
 */
interface Penalties {
  readonly endsAtMs: number;
  readonly shortFloorMs: number;
  readonly longFloorMs: number;
  readonly shortStrikes: number;
  readonly longStrikes: number;
}

const NO_PENALTIES: Penalties = {
  endsAtMs: 0,
  shortFloorMs: 0,
  longFloorMs: 0,
  shortStrikes: 0,
  longStrikes: 0,
};

/** The attempts, the calls in flight, the block and the penalties of one identity. */
class Ledger {
  readonly attempts = new AttemptLog();
  readonly inFlight = new Map<string, { readonly sinceMs: number; readonly cost: number }>();
  /** When all attempts and calls in flight are forgotten. */
  endsAtMs = 0;
  block: Block | undefined;
  penalties = NO_PENALTIES;
  lastForgiven: string | undefined;
  /** The count of a policy with `algorithm: 'fixed-window'`, which has no attempts. */
  window: FixedWindow | undefined;

  /**
   * Drops everything that is over. As in Redis, this is one millisecond after each `endsAtMs`, although a block or a
   * window has no effect from `endsAtMs` on.
   */
  tidy(nowMs: number): this {
    if (this.block && nowMs > this.block.endsAtMs) this.block = undefined;
    if (nowMs > this.penalties.endsAtMs) this.penalties = NO_PENALTIES;
    if (this.window && nowMs > this.window.endsAtMs) this.window = undefined;
    if (nowMs > this.endsAtMs) {
      this.attempts.clear();
      this.inFlight.clear();
    }
    return this;
  }

  isEmpty(): boolean {
    return (
      !this.block &&
      !this.window &&
      this.penalties === NO_PENALTIES &&
      this.attempts.length === 0 &&
      this.inFlight.size === 0
    );
  }

  /** Returns the block, unless it has ended. At `endsAtMs` it has ended, so a client that waits exactly as long is let in. */
  liveBlock(nowMs: number): Block | undefined {
    return this.block && nowMs < this.block.endsAtMs ? this.block : undefined;
  }

  /** Returns the window, unless it has ended. At `endsAtMs` it has ended. */
  openWindow(nowMs: number): FixedWindow | undefined {
    return this.window && nowMs < this.window.endsAtMs ? this.window : undefined;
  }

  dropInFlight(beforeMs: number): void {
    for (const [callId, { sinceMs }] of this.inFlight) if (sinceMs <= beforeMs) this.inFlight.delete(callId);
  }

  inFlightCost(): number {
    let sum = 0;
    for (const { cost } of this.inFlight.values()) sum += cost;
    return sum;
  }

  /** Counts calls that have been in flight for too long as successes, because none of them was shown to have failed. */
  countInFlight(beforeMs: number): void {
    for (const [callId, { sinceMs, cost }] of this.inFlight)
      if (sinceMs <= beforeMs) {
        this.inFlight.delete(callId);
        this.attempts.add(callId, sinceMs, cost);
      }
  }

  withdraw(callId: string): void {
    this.inFlight.delete(callId);
    this.attempts.withdraw(callId);
  }
}

/** Limits in the memory of one process. Each method takes the same steps as the script of the Redis backend. */
export class MemoryLimitBackend implements LimitBackend {
  readonly backend = 'memory';
  readonly #ledgers: LedgerStore<Ledger>;

  constructor(private readonly clock: Clock = systemClock) {
    this.#ledgers = new LedgerStore(clock, () => new Ledger());
  }

  /** The number of identities that are kept. */
  get size(): number {
    return this.#ledgers.size;
  }

  async check(
    checks: readonly LimitCheck[],
    callId: string,
    options?: CallOptions,
  ): Promise<BackendDecision[]> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const decide = (check: LimitCheck, commit: boolean): BackendDecision => {
      if (check.cost === 0) return look(this.#ledgers.peek(check.identity, nowMs), check, nowMs);
      const ledger = this.#ledgers.take(check.identity, nowMs);
      if (check.policy.algorithm === 'fixed-window')
        return countInWindow(ledger, check, callId, nowMs, commit);
      return DECIDERS[check.policy.count](ledger, check, callId, nowMs, commit);
    };
    const [only] = checks;
    if (only && checks.length === 1) return [decide(only, true)];
    const decisions = checks.map((check) => decide(check, false));
    const allowed = decisions.every(({ status }) => status === 'allowed');
    return checks.map((check, i) => {
      const decision = decisions[i] as BackendDecision;
      return (decision.status === 'allowed') === allowed ? decide(check, true) : decision;
    });
  }

  async confirm(check: LimitCheck, callId: string, options?: CallOptions): Promise<BackendDecision> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const count = check.policy.count === 'success' ? grant : confirm;
    return count(this.#ledgers.take(check.identity, nowMs), check, callId, nowMs);
  }

  async withdraw(check: LimitCheck, callId: string, forget: boolean, options?: CallOptions): Promise<void> {
    if (check.policy.algorithm === 'fixed-window') return this.forgive(check, check.cost, callId, options);
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const ledger = this.#ledgers.take(check.identity, nowMs);
    ledger.withdraw(callId);
    if (!forget || ledger.liveBlock(nowMs)) return;
    ledger.attempts.clear();
    ledger.penalties = NO_PENALTIES;
  }

  async peek(subject: Subject, options?: CallOptions): Promise<BackendDecision> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const ledger = this.#ledgers.peek(subject.identity, nowMs) ?? new Ledger();
    return peek(ledger, subject.policy, nowMs);
  }

  async forgive(subject: Subject, count: number, callId: string, options?: CallOptions): Promise<void> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const ledger = this.#ledgers.take(subject.identity, nowMs);
    if (subject.policy.algorithm === 'fixed-window') return ledger.openWindow(nowMs)?.forgive(count, callId);
    if (ledger.lastForgiven === callId) return;
    ledger.lastForgiven = callId;
    ledger.attempts.dropNewest(count);
  }

  async reset({ identity }: Subject, options?: CallOptions): Promise<void> {
    refuseAborted(options?.signal, LimitError);
    this.#ledgers.delete(identity);
  }

  async block(subject: Subject, blockMs: number, reason: string, options?: CallOptions): Promise<void> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const endsAtMs = nowMs + blockMs;
    this.#ledgers.take(subject.identity, nowMs).block = {
      scope: 'manual',
      reason: reason || 'manual',
      shortCount: 0,
      longCount: 0,
      endsAtMs,
    };
  }

  async unblock(subject: Subject, options?: CallOptions): Promise<void> {
    refuseAborted(options?.signal, LimitError);
    this.#ledgers.take(subject.identity, this.clock.now()).block = undefined;
  }
}

/** Decides about a call that is not counted: a block denies it, and so does a limit of 0. */
function look(ledger: Ledger | undefined, { policy }: LimitCheck, nowMs: number): BackendDecision {
  const live = ledger?.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const nothing = { shortCount: 0, longCount: 0 };
  return policy.rules.shortThreshold === 0
    ? denied(nothing, 'temp', 'temp', policy.rules.shortWindowMs, false)
    : { status: 'allowed', ...nothing, resetMs: 0 };
}

function countInWindow(
  ledger: Ledger,
  check: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): BackendDecision {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const window = ledger.openWindow(nowMs) ?? new FixedWindow(nowMs + check.policy.rules.shortWindowMs);
  const decision = window.decide(check, callId, nowMs, commit);
  if (commit && decision.status === 'allowed') ledger.window = window;
  return decision;
}

interface Windows {
  readonly shortFromMs: number;
  readonly shortCount: number;
  readonly longCount: number;
}

/**
 * Returns the instants after which attempts count, and the counts. A window has no upper end, so that no attempt is lost
 * when the clock steps back.
 */
function windowsOf(
  ledger: Ledger,
  { rules }: CountedPolicy,
  nowMs: number,
): Windows & { longFromMs: number } {
  const shortFromMs = Math.max(nowMs - rules.shortWindowMs, ledger.penalties.shortFloorMs);
  const longFromMs =
    rules.longThreshold === 0
      ? shortFromMs
      : Math.max(nowMs - rules.longWindowMs, ledger.penalties.longFloorMs);
  return {
    shortFromMs,
    longFromMs,
    shortCount: ledger.attempts.countAfter(shortFromMs),
    longCount: ledger.attempts.countAfter(longFromMs),
  };
}

function prune(ledger: Ledger, policy: CountedPolicy, nowMs: number): Windows {
  const windows = windowsOf(ledger, policy, nowMs);
  ledger.attempts.dropUpTo(Math.min(windows.shortFromMs, windows.longFromMs));
  ledger.dropInFlight(policy.count === 'failure' ? nowMs - IN_FLIGHT_MS : Infinity);
  return windows;
}

function attempt(
  ledger: Ledger,
  check: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): BackendDecision {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const { policy, cost } = check;
  const windows = prune(ledger, policy, nowMs);
  const full = fullTiers(policy, windows, cost);
  if (full.short && policy.rules.shortBlockMs === 0 && !ledger.attempts.has(callId))
    return denyUntilRoom(ledger, policy, windows, cost, nowMs);
  return count(ledger, check, callId, nowMs, windows, commit);
}

function enter(
  ledger: Ledger,
  check: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): BackendDecision {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const { policy, cost } = check;
  const { rules } = policy;
  const windows = prune(ledger, policy, nowMs);
  const { shortCount, longCount } = windows;
  const known = ledger.inFlight.has(callId) || ledger.attempts.has(callId);
  const plain = rules.shortBlockMs === 0;
  if (plain && fullTiers(policy, windows, cost).short && !known)
    return denyUntilRoom(ledger, policy, windows, cost, nowMs);
  // With a block, the call that would fill a tier may enter: if it fails, it sets the block. Without one it needs room.
  const inFlight = ledger.inFlightCost();
  const busy =
    shortCount + inFlight + (plain ? cost : 0) >= rules.shortThreshold ||
    (rules.longThreshold > 0 && longCount + inFlight >= rules.longThreshold);
  if (busy && !known) return denied({ shortCount, longCount }, 'temp', 'busy', BUSY_RETRY_MS, false);
  if (commit) {
    if (!known) ledger.inFlight.set(callId, { sinceMs: nowMs, cost });
    ledger.endsAtMs = nowMs + keepMs(policy);
  }
  return allowed({ shortCount, longCount }, rules);
}

function confirm(ledger: Ledger, check: LimitCheck, callId: string, nowMs: number): BackendDecision {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  return count(ledger, check, callId, nowMs, prune(ledger, check.policy, nowMs), true);
}

/** Reserves room for a success before it happens, because a success that has happened cannot be denied any more. */
function reserve(
  ledger: Ledger,
  { policy, cost }: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): BackendDecision {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const { rules } = policy;
  const known = ledger.inFlight.has(callId) || ledger.attempts.has(callId);
  const counts = pruneSuccesses(ledger, policy, nowMs);
  const { shortCount, longCount } = counts;
  if (known) return allowed(counts, rules);
  const full = fullTiers(policy, counts, 1);
  if (rules.shortBlockMs > 0 && (full.short || full.long))
    return commit ? block(ledger, policy, full, counts, nowMs) : denied(counts, 'temp', 'temp', 1, true);
  const waitMs = Math.max(
    waitForRoom(ledger, shortCount, rules.shortThreshold, cost, rules.shortWindowMs, nowMs),
    waitForRoom(ledger, longCount, rules.longThreshold, cost, rules.longWindowMs, nowMs),
  );
  if (waitMs > 0) return denied(counts, 'temp', 'temp', waitMs, false);
  const taken = fullTiers(policy, counts, cost + ledger.inFlightCost());
  if (taken.short || taken.long) return denied(counts, 'temp', 'busy', BUSY_RETRY_MS, false);
  if (commit) {
    ledger.inFlight.set(callId, { sinceMs: nowMs, cost });
    ledger.endsAtMs = nowMs + keepMs(policy);
  }
  return allowed(counts, rules);
}

/** Counts a success, even while there is a block. Sets a block if the success fills a tier. */
function grant(ledger: Ledger, { policy, cost }: LimitCheck, callId: string, nowMs: number): BackendDecision {
  const { shortFloorMs, longFloorMs } = ledger.penalties;
  if (!ledger.attempts.has(callId)) {
    ledger.inFlight.delete(callId);
    ledger.attempts.add(callId, Math.max(nowMs, shortFloorMs + 1, longFloorMs + 1), cost);
    ledger.endsAtMs = nowMs + keepMs(policy);
  }
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const windows = pruneSuccesses(ledger, policy, nowMs);
  const full = fullTiers(policy, windows, 1);
  return policy.rules.shortBlockMs > 0 && (full.short || full.long)
    ? block(ledger, policy, full, windows, nowMs)
    : allowed(windows, policy.rules);
}

function pruneSuccesses(ledger: Ledger, policy: CountedPolicy, nowMs: number): LimitCounts {
  ledger.countInFlight(nowMs - IN_FLIGHT_MS);
  const { shortFromMs, longFromMs, shortCount, longCount } = windowsOf(ledger, policy, nowMs);
  ledger.attempts.dropUpTo(Math.min(shortFromMs, longFromMs));
  return { shortCount, longCount };
}

const DECIDERS = { attempt, failure: enter, success: reserve };

/** Counts the call, and sets a block if the call fills a tier. Without `commit` it only decides. */
function count(
  ledger: Ledger,
  { policy, cost }: LimitCheck,
  callId: string,
  nowMs: number,
  { shortCount, longCount }: Windows,
  commit: boolean,
): BackendDecision {
  const { rules } = policy;
  const full = fullTiers(policy, { shortCount, longCount }, cost);
  const blocks = full.long || (full.short && rules.shortBlockMs > 0);
  if (ledger.attempts.has(callId)) return allowed({ shortCount, longCount }, rules);
  if (!commit)
    return blocks
      ? denied({ shortCount, longCount }, 'temp', 'temp', 1, true)
      : allowed({ shortCount, longCount }, rules);
  const { shortFloorMs, longFloorMs } = ledger.penalties;
  ledger.inFlight.delete(callId);
  ledger.attempts.add(callId, Math.max(nowMs, shortFloorMs + 1, longFloorMs + 1), cost);
  ledger.endsAtMs = nowMs + keepMs(policy);
  const counts = { shortCount: shortCount + cost, longCount: longCount + cost };
  if (!blocks) return allowed(counts, rules);
  return block(ledger, policy, full, counts, nowMs);
}

/**
 * Sets a block. Every window that is full starts again with no attempts, after its newest attempt, even if the clock
 * has stepped back since that attempt.
 */
function block(
  ledger: Ledger,
  { rules }: CountedPolicy,
  full: { short: boolean; long: boolean },
  counts: LimitCounts,
  nowMs: number,
): BackendDecision {
  const newestMs = (ledger.attempts.newest as Attempt).atMs;
  const { shortFloorMs, longFloorMs, shortStrikes, longStrikes } = ledger.penalties;
  const [scope, baseMs, strikes] = full.long
    ? (['long', rules.longBlockMs, longStrikes] as const)
    : (['temp', rules.shortBlockMs, shortStrikes] as const);
  const blockMs = Math.floor(Math.min(rules.maxBlockMs, baseMs * rules.factor ** strikes));
  ledger.penalties = {
    endsAtMs: nowMs + rules.penaltiesTtlMs + blockMs,
    shortFloorMs: full.short ? newestMs : shortFloorMs,
    longFloorMs: full.long ? newestMs : longFloorMs,
    shortStrikes: shortStrikes + (full.long ? 0 : 1),
    longStrikes: longStrikes + (full.long ? 1 : 0),
  };
  ledger.block = { scope, reason: scope, ...counts, endsAtMs: nowMs + blockMs };
  return blocked(ledger.block, nowMs);
}

function peek(ledger: Ledger, policy: CountedPolicy, nowMs: number): BackendDecision {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  if (policy.algorithm === 'fixed-window')
    return (ledger.openWindow(nowMs) ?? new FixedWindow(nowMs)).peek(policy.rules, nowMs);
  const windows = windowsOf(ledger, policy, nowMs);
  const { shortCount, longCount } = windows;
  if (policy.rules.shortBlockMs === 0 && fullTiers(policy, windows, 1).short)
    return denyUntilRoom(ledger, policy, windows, 1, nowMs);
  const newest = shortCount > 0 ? ledger.attempts.newest : undefined;
  const resetMs = newest ? untilLeft(newest, policy.rules.shortWindowMs, nowMs) : 0;
  return { status: 'allowed', shortCount, longCount, resetMs };
}

function fullTiers(
  { rules }: CountedPolicy,
  { shortCount, longCount }: LimitCounts,
  cost: number,
): { short: boolean; long: boolean } {
  return {
    short: shortCount + cost >= rules.shortThreshold,
    long: rules.longThreshold > 0 && longCount + cost >= rules.longThreshold,
  };
}

/** Denies a call under a limit without a block, until enough of the oldest attempts leave the window for the call to fit. */
function denyUntilRoom(
  ledger: Ledger,
  { rules: { shortThreshold, shortWindowMs } }: CountedPolicy,
  { shortCount, longCount }: Windows,
  cost: number,
  nowMs: number,
): BackendDecision {
  const waitMs = waitForRoom(ledger, shortCount, shortThreshold, cost, shortWindowMs, nowMs);
  return denied({ shortCount, longCount }, 'temp', 'temp', waitMs, false);
}

/** Returns how long it takes until the call fits beside the `count` attempts of a window, in ms. 0 if it fits now. */
function waitForRoom(
  ledger: Ledger,
  count: number,
  threshold: number,
  cost: number,
  windowMs: number,
  nowMs: number,
): number {
  const excess = threshold > 0 ? count + cost - threshold + 1 : 0;
  // A call that costs more than the tier holds never fits, so there is no time to wait for. `reserve` denies it as 'busy'.
  if (excess < 1 || excess > count) return 0;
  const last = ledger.attempts.at(ledger.attempts.length - count + excess - 1) as Attempt;
  return untilLeft(last, windowMs, nowMs);
}

/**
 * Returns how long it takes until an attempt leaves the window, in ms. If the clock has stepped back, the attempt lies in
 * the future. The wait is still no longer than the window.
 */
const untilLeft = ({ atMs }: Attempt, windowMs: number, nowMs: number): number =>
  Math.min(atMs - nowMs, 0) + windowMs;

/** `resetMs` is the time until the short window is empty: exact if this call was counted, otherwise an upper bound. */
const allowed = (counts: LimitCounts, { shortWindowMs }: LimitRules): BackendDecision => ({
  status: 'allowed',
  ...counts,
  resetMs: counts.shortCount > 0 ? shortWindowMs : 0,
});

const blocked = ({ scope, reason, shortCount, longCount, endsAtMs }: Block, nowMs: number): BackendDecision =>
  denied({ shortCount, longCount }, scope, reason, endsAtMs - nowMs, true);

const denied = (
  counts: LimitCounts,
  scope: LimitScope,
  reason: string,
  retryAfterMs: number,
  isBlock: boolean,
): BackendDecision => ({ status: 'denied', scope, reason, retryAfterMs, ...counts, blocked: isBlock });

const keepMs = ({ rules }: CountedPolicy): number =>
  Math.max(rules.shortWindowMs, rules.longWindowMs) + SLACK_MS;
