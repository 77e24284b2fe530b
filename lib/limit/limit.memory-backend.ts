import { refuseAborted } from '../aborted.js';
import { type Clock, systemClock } from '../clock.js';
import { FixedWindow } from './fixed-window.js';
import { LedgerStore } from './ledger-store.js';
import type {
  CallOptions,
  LimitBackend,
  LimitCheck,
  LimitCounts,
  LimitOutcome,
  Subject,
} from './limit.backend.js';
import { LimitError } from './limit.errors.js';
import { isUncounted, letsNobodyIn } from './limit.per-call.js';
import { isFixedWindow, type LimitRules, type ResolvedPolicy } from './limit.policy.js';
import type { LimitScope } from './limit.types.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from './limit.values.js';

interface Attempt {
  readonly callId: string;
  readonly atMs: number;
}

interface Block {
  readonly scope: LimitScope;
  readonly reason: string;
  readonly shortCount: number;
  readonly longCount: number;
  readonly endsAtMs: number;
}

/** What the blocks of one identity leave behind. Attempts up to a tier's floor have been served by a block. */
interface BlockRecord {
  readonly endsAtMs: number;
  readonly tempFloorMs: number;
  readonly longFloorMs: number;
  readonly tempStrikes: number;
  readonly longStrikes: number;
}

const NO_RECORD: BlockRecord = {
  endsAtMs: 0,
  tempFloorMs: 0,
  longFloorMs: 0,
  tempStrikes: 0,
  longStrikes: 0,
};

/** All that is known of one identity of one limiter. */
class Ledger {
  /** By time. A call of cost n has n of them. */
  attempts: Attempt[] = [];
  readonly inFlight = new Map<string, { readonly sinceMs: number; readonly cost: number }>();
  /** When attempts and calls in flight are forgotten altogether. */
  endsAtMs = 0;
  block: Block | undefined;
  record = NO_RECORD;
  lastForgiven: string | undefined;
  /** Of a policy whose algorithm is `fixed-window`, in place of attempts. */
  window: FixedWindow | undefined;

  /** Drops what is over, at the instant at which Redis drops a key: after its last millisecond. */
  tidy(nowMs: number): this {
    if (this.block && nowMs > this.block.endsAtMs) this.block = undefined;
    if (nowMs > this.record.endsAtMs) this.record = NO_RECORD;
    if (this.window && nowMs > this.window.endsAtMs) this.window = undefined;
    if (nowMs > this.endsAtMs) {
      this.attempts = [];
      this.inFlight.clear();
    }
    return this;
  }

  isEmpty(): boolean {
    return (
      !this.block &&
      !this.window &&
      this.record === NO_RECORD &&
      this.attempts.length === 0 &&
      this.inFlight.size === 0
    );
  }

  /** A block has ended in its last millisecond: who waits exactly as long as was said is let in. */
  liveBlock(nowMs: number): Block | undefined {
    return this.block && nowMs < this.block.endsAtMs ? this.block : undefined;
  }

  /** A window is over in its last millisecond as well. */
  openWindow(nowMs: number): FixedWindow | undefined {
    return this.window && nowMs < this.window.endsAtMs ? this.window : undefined;
  }

  countAfter(fromMs: number): number {
    return this.attempts.length - this.#firstAfter(fromMs);
  }

  dropUpTo(fromMs: number): void {
    this.attempts.splice(0, this.#firstAfter(fromMs));
  }

  dropInFlight(beforeMs: number): void {
    for (const [callId, { sinceMs }] of this.inFlight) if (sinceMs <= beforeMs) this.inFlight.delete(callId);
  }

  inFlightCost(): number {
    let sum = 0;
    for (const { cost } of this.inFlight.values()) sum += cost;
    return sum;
  }

  has(callId: string): boolean {
    return this.attempts.some((attempt) => attempt.callId === callId);
  }

  /** How many were added: none of a call that is there already. */
  add(callId: string, atMs: number, cost: number): number {
    if (this.has(callId)) return 0;
    this.attempts.splice(
      this.#firstAfter(atMs),
      0,
      ...Array.from({ length: cost }, () => ({ callId, atMs })),
    );
    return cost;
  }

  /** Nobody has shown that these were no successes. */
  countInFlight(beforeMs: number): void {
    for (const [callId, { sinceMs, cost }] of this.inFlight)
      if (sinceMs <= beforeMs) {
        this.inFlight.delete(callId);
        this.add(callId, sinceMs, cost);
      }
  }

  withdraw(callId: string): void {
    this.inFlight.delete(callId);
    this.attempts = this.attempts.filter((attempt) => attempt.callId !== callId);
  }

  #firstAfter(fromMs: number): number {
    let low = 0;
    let high = this.attempts.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.attempts[middle] as Attempt).atMs <= fromMs) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Limits of one process, with the behaviour of the Redis backend: step for step what its scripts do. */
export class MemoryLimitBackend implements LimitBackend {
  readonly backend = 'memory';
  readonly #ledgers: LedgerStore<Ledger>;

  constructor(private readonly clock: Clock = systemClock) {
    this.#ledgers = new LedgerStore(clock, () => new Ledger());
  }

  /** How many identities are remembered. */
  get size(): number {
    return this.#ledgers.size;
  }

  async check(checks: readonly LimitCheck[], callId: string, options?: CallOptions): Promise<LimitOutcome[]> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const decide = (check: LimitCheck, commit: boolean): LimitOutcome => {
      if (isUncounted(check)) return look(this.#ledgers.peek(check.identity, nowMs), check, nowMs);
      const ledger = this.#ledgers.take(check.identity, nowMs);
      if (isFixedWindow(check.policy)) return countInWindow(ledger, check, callId, nowMs, commit);
      return DECISIONS[check.policy.count](ledger, check, callId, nowMs, commit);
    };
    const [only] = checks;
    if (only && checks.length === 1) return [decide(only, true)];
    const answers = checks.map((check) => decide(check, false));
    const allowed = answers.every(({ status }) => status === 'allowed');
    return checks.map((check, i) => {
      const answer = answers[i] as LimitOutcome;
      return (answer.status === 'allowed') === allowed ? decide(check, true) : answer;
    });
  }

  async confirm(check: LimitCheck, callId: string, options?: CallOptions): Promise<LimitOutcome> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const count = check.policy.count === 'success' ? grant : confirm;
    return count(this.#ledgers.take(check.identity, nowMs), check, callId, nowMs);
  }

  async withdraw(check: LimitCheck, callId: string, forget: boolean, options?: CallOptions): Promise<void> {
    if (isFixedWindow(check.policy)) return this.forgive(check, check.cost, callId, options);
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const ledger = this.#ledgers.take(check.identity, nowMs);
    ledger.withdraw(callId);
    if (!forget || ledger.liveBlock(nowMs)) return;
    ledger.attempts = [];
    ledger.record = NO_RECORD;
  }

  async peek(subject: Subject, options?: CallOptions): Promise<LimitOutcome> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const ledger = this.#ledgers.peek(subject.identity, nowMs) ?? new Ledger();
    return peek(ledger, subject.policy, nowMs);
  }

  async forgive(subject: Subject, count: number, callId: string, options?: CallOptions): Promise<void> {
    refuseAborted(options?.signal, LimitError);
    const nowMs = this.clock.now();
    const ledger = this.#ledgers.take(subject.identity, nowMs);
    if (isFixedWindow(subject.policy)) return ledger.openWindow(nowMs)?.forgive(count, callId);
    if (ledger.lastForgiven === callId) return;
    ledger.lastForgiven = callId;
    ledger.attempts.splice(-count, count);
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

/** Counts nothing: a block answers, or a limit that lets nobody in. */
function look(ledger: Ledger | undefined, { policy }: LimitCheck, nowMs: number): LimitOutcome {
  const live = ledger?.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const nothing = { shortCount: 0, longCount: 0 };
  return letsNobodyIn(policy)
    ? denied(nothing, 'temp', 'temp', policy.rules.tempWindowMs, false)
    : { status: 'allowed', ...nothing, resetMs: 0 };
}

function countInWindow(
  ledger: Ledger,
  check: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): LimitOutcome {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const window = ledger.openWindow(nowMs) ?? new FixedWindow(nowMs + check.policy.rules.tempWindowMs);
  const outcome = window.decide(check, callId, nowMs, commit);
  if (commit && outcome.status === 'allowed') ledger.window = window;
  return outcome;
}

interface Windows {
  readonly tempFromMs: number;
  readonly shortCount: number;
  readonly longCount: number;
}

/** Attempts after these instants count: (now - window, now], and open at the end, for a clock that stepped back. */
function windowsOf(
  ledger: Ledger,
  { rules }: ResolvedPolicy,
  nowMs: number,
): Windows & { longFromMs: number } {
  const tempFromMs = Math.max(nowMs - rules.tempWindowMs, ledger.record.tempFloorMs);
  const longFromMs =
    rules.longThreshold === 0 ? tempFromMs : Math.max(nowMs - rules.longWindowMs, ledger.record.longFloorMs);
  return {
    tempFromMs,
    longFromMs,
    shortCount: ledger.countAfter(tempFromMs),
    longCount: ledger.countAfter(longFromMs),
  };
}

function prune(ledger: Ledger, policy: ResolvedPolicy, nowMs: number): Windows {
  const windows = windowsOf(ledger, policy, nowMs);
  ledger.dropUpTo(Math.min(windows.tempFromMs, windows.longFromMs));
  ledger.dropInFlight(policy.count === 'failure' ? nowMs - IN_FLIGHT_MS : Infinity);
  return windows;
}

function attempt(
  ledger: Ledger,
  check: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): LimitOutcome {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const { policy, cost } = check;
  const windows = prune(ledger, policy, nowMs);
  const full = fullTiers(policy, windows, cost);
  if (full.temp && policy.rules.tempBlockMs === 0 && !ledger.has(callId))
    return windowDenial(ledger, policy, windows, cost, nowMs);
  return count(ledger, check, callId, nowMs, windows, commit);
}

function enter(
  ledger: Ledger,
  check: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): LimitOutcome {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const { policy, cost } = check;
  const { rules } = policy;
  const windows = prune(ledger, policy, nowMs);
  const { shortCount, longCount } = windows;
  const known = ledger.inFlight.has(callId) || ledger.has(callId);
  const plain = rules.tempBlockMs === 0;
  if (plain && fullTiers(policy, windows, cost).temp && !known)
    return windowDenial(ledger, policy, windows, cost, nowMs);
  // The failure that fills a tier may enter: it is the one that blocks. Without a block there has to be room.
  const inFlight = ledger.inFlightCost();
  const busy =
    shortCount + inFlight + (plain ? cost : 0) >= rules.tempThreshold ||
    (rules.longThreshold > 0 && longCount + inFlight >= rules.longThreshold);
  if (busy && !known) return denied({ shortCount, longCount }, 'temp', 'busy', BUSY_RETRY_MS, false);
  if (commit) {
    if (!known) ledger.inFlight.set(callId, { sinceMs: nowMs, cost });
    ledger.endsAtMs = nowMs + keepMs(policy);
  }
  return allowed({ shortCount, longCount }, rules);
}

function confirm(ledger: Ledger, check: LimitCheck, callId: string, nowMs: number): LimitOutcome {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  return count(ledger, check, callId, nowMs, prune(ledger, check.policy, nowMs), true);
}

/** Room for a success: it is taken up from the start, as one that is too many cannot be refused any more. */
function reserve(
  ledger: Ledger,
  { policy, cost }: LimitCheck,
  callId: string,
  nowMs: number,
  commit: boolean,
): LimitOutcome {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const { rules } = policy;
  const known = ledger.inFlight.has(callId) || ledger.has(callId);
  const counts = pruneSuccesses(ledger, policy, nowMs);
  const { shortCount, longCount } = counts;
  if (known) return allowed(counts, rules);
  const full = fullTiers(policy, counts, 1);
  if (rules.tempBlockMs > 0 && (full.temp || full.long))
    return commit ? block(ledger, policy, full, counts, nowMs) : denied(counts, 'temp', 'temp', 1, true);
  const waitMs = Math.max(
    waitForRoom(ledger, shortCount, rules.tempThreshold, cost, rules.tempWindowMs, nowMs),
    waitForRoom(ledger, longCount, rules.longThreshold, cost, rules.longWindowMs, nowMs),
  );
  if (waitMs > 0) return denied(counts, 'temp', 'temp', waitMs, false);
  const taken = fullTiers(policy, counts, cost + ledger.inFlightCost());
  if (taken.temp || taken.long) return denied(counts, 'temp', 'busy', BUSY_RETRY_MS, false);
  if (commit) {
    ledger.inFlight.set(callId, { sinceMs: nowMs, cost });
    ledger.endsAtMs = nowMs + keepMs(policy);
  }
  return allowed(counts, rules);
}

/** Counts a success, also under a block; sets one if that fills a tier. */
function grant(ledger: Ledger, { policy, cost }: LimitCheck, callId: string, nowMs: number): LimitOutcome {
  const { tempFloorMs, longFloorMs } = ledger.record;
  if (!ledger.has(callId)) {
    ledger.inFlight.delete(callId);
    ledger.add(callId, Math.max(nowMs, tempFloorMs + 1, longFloorMs + 1), cost);
    ledger.endsAtMs = nowMs + keepMs(policy);
  }
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  const windows = pruneSuccesses(ledger, policy, nowMs);
  const full = fullTiers(policy, windows, 1);
  return policy.rules.tempBlockMs > 0 && (full.temp || full.long)
    ? block(ledger, policy, full, windows, nowMs)
    : allowed(windows, policy.rules);
}

function pruneSuccesses(ledger: Ledger, policy: ResolvedPolicy, nowMs: number): LimitCounts {
  ledger.countInFlight(nowMs - IN_FLIGHT_MS);
  const { tempFromMs, longFromMs, shortCount, longCount } = windowsOf(ledger, policy, nowMs);
  ledger.dropUpTo(Math.min(tempFromMs, longFromMs));
  return { shortCount, longCount };
}

const DECISIONS = { attempt, failure: enter, success: reserve };

/** Counts the call; blocks when that fills a tier. */
function count(
  ledger: Ledger,
  { policy, cost }: LimitCheck,
  callId: string,
  nowMs: number,
  { shortCount, longCount }: Windows,
  commit: boolean,
): LimitOutcome {
  const { rules } = policy;
  const full = fullTiers(policy, { shortCount, longCount }, cost);
  const blocks = full.long || (full.temp && rules.tempBlockMs > 0);
  if (ledger.has(callId)) return allowed({ shortCount, longCount }, rules);
  if (!commit)
    return blocks
      ? denied({ shortCount, longCount }, 'temp', 'temp', 1, true)
      : allowed({ shortCount, longCount }, rules);
  const { tempFloorMs, longFloorMs } = ledger.record;
  ledger.inFlight.delete(callId);
  ledger.add(callId, Math.max(nowMs, tempFloorMs + 1, longFloorMs + 1), cost);
  ledger.endsAtMs = nowMs + keepMs(policy);
  const counts = { shortCount: shortCount + cost, longCount: longCount + cost };
  if (!blocks) return allowed(counts, rules);
  return block(ledger, policy, full, counts, nowMs);
}

/** A block serves every window that is full, up to the newest attempt: also one from before the clock stepped back. */
function block(
  ledger: Ledger,
  { rules }: ResolvedPolicy,
  full: { temp: boolean; long: boolean },
  counts: LimitCounts,
  nowMs: number,
): LimitOutcome {
  const newestMs = (ledger.attempts.at(-1) as Attempt).atMs;
  const { tempFloorMs, longFloorMs, tempStrikes, longStrikes } = ledger.record;
  const [scope, baseMs, strikes] = full.long
    ? (['long', rules.longBlockMs, longStrikes] as const)
    : (['temp', rules.tempBlockMs, tempStrikes] as const);
  const blockMs = Math.floor(Math.min(rules.maxBlockMs, baseMs * rules.factor ** strikes));
  ledger.record = {
    endsAtMs: nowMs + rules.recordTtlMs + blockMs,
    tempFloorMs: full.temp ? newestMs : tempFloorMs,
    longFloorMs: full.long ? newestMs : longFloorMs,
    tempStrikes: tempStrikes + (full.long ? 0 : 1),
    longStrikes: longStrikes + (full.long ? 1 : 0),
  };
  ledger.block = { scope, reason: scope, ...counts, endsAtMs: nowMs + blockMs };
  return blocked(ledger.block, nowMs);
}

function peek(ledger: Ledger, policy: ResolvedPolicy, nowMs: number): LimitOutcome {
  const live = ledger.liveBlock(nowMs);
  if (live) return blocked(live, nowMs);
  if (isFixedWindow(policy))
    return (ledger.openWindow(nowMs) ?? new FixedWindow(nowMs)).peek(policy.rules, nowMs);
  const windows = windowsOf(ledger, policy, nowMs);
  const { shortCount, longCount } = windows;
  if (policy.rules.tempBlockMs === 0 && fullTiers(policy, windows, 1).temp)
    return windowDenial(ledger, policy, windows, 1, nowMs);
  const newest = shortCount > 0 ? ledger.attempts.at(-1) : undefined;
  const resetMs = newest ? untilLeft(newest, policy.rules.tempWindowMs, nowMs) : 0;
  return { status: 'allowed', shortCount, longCount, resetMs };
}

function fullTiers(
  { rules }: ResolvedPolicy,
  { shortCount, longCount }: LimitCounts,
  cost: number,
): { temp: boolean; long: boolean } {
  return {
    temp: shortCount + cost >= rules.tempThreshold,
    long: rules.longThreshold > 0 && longCount + cost >= rules.longThreshold,
  };
}

/** A limit without a block: until so many of the oldest attempts have left the window that the call fits. */
function windowDenial(
  ledger: Ledger,
  { rules: { tempThreshold, tempWindowMs } }: ResolvedPolicy,
  { shortCount, longCount }: Windows,
  cost: number,
  nowMs: number,
): LimitOutcome {
  const waitMs = waitForRoom(ledger, shortCount, tempThreshold, cost, tempWindowMs, nowMs);
  return denied({ shortCount, longCount }, 'temp', 'temp', waitMs, false);
}

/** 0 if there is room: `count` attempts of the window leave that much of the threshold. */
function waitForRoom(
  ledger: Ledger,
  count: number,
  threshold: number,
  cost: number,
  windowMs: number,
  nowMs: number,
): number {
  const excess = threshold > 0 ? count + cost - threshold + 1 : 0;
  // A call that is dearer than a tier holds finds no room at any time: it is told to ask again.
  if (excess < 1 || excess > count) return 0;
  const last = ledger.attempts[ledger.attempts.length - count + excess - 1] as Attempt;
  return untilLeft(last, windowMs, nowMs);
}

/** Until an attempt leaves the window: no longer than that, also where the clock stepped back and it lies ahead. */
const untilLeft = ({ atMs }: Attempt, windowMs: number, nowMs: number): number =>
  Math.min(atMs - nowMs, 0) + windowMs;

/** Until the shorter window is empty if nothing more comes: exact for a call that counts now, else at most. */
const allowed = (counts: LimitCounts, { tempWindowMs }: LimitRules): LimitOutcome => ({
  status: 'allowed',
  ...counts,
  resetMs: counts.shortCount > 0 ? tempWindowMs : 0,
});

const blocked = ({ scope, reason, shortCount, longCount, endsAtMs }: Block, nowMs: number): LimitOutcome =>
  denied({ shortCount, longCount }, scope, reason, endsAtMs - nowMs, true);

const denied = (
  counts: LimitCounts,
  scope: LimitScope,
  reason: string,
  retryAfterMs: number,
  isBlock: boolean,
): LimitOutcome => ({ status: 'denied', scope, reason, retryAfterMs, ...counts, blocked: isBlock });

const keepMs = ({ rules }: ResolvedPolicy): number =>
  Math.max(rules.tempWindowMs, rules.longWindowMs) + SLACK_MS;
