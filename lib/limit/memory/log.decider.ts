import {
  type BackendDecision,
  CALL_ID_LENGTH,
  keepAttemptsMs,
  keepMs,
  type LimitCounts,
  type LimitRules,
  renewAttemptsMs,
  type TierRules,
} from '../limit.backend.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS } from '../limit.times.js';
import type { LimitScope } from '../limit.types.js';
import type { Attempt } from './attempt-log.js';
import type { Block, Ledger } from './ledger.js';

// redis/log.decider.ts and redis/limit.fragments.ts have the same functions, by the same names, and say why.

/** A call that asks one limit. */
export interface Ask {
  readonly ledger: Ledger;
  readonly rules: LimitRules;
  readonly cost: number;
  readonly callId: string;
  readonly nowMs: number;
  /** Without it nothing is counted. */
  readonly commit: boolean;
}

export type Decider = (ask: Ask) => BackendDecision;

/** After a step back of the clock behind a floor: what lies ahead has happened now, in the order in which it happened. */
function stepBack({ ledger, nowMs, commit }: Ask): void {
  const { penalties, attempts } = ledger;
  const { floorsMs } = penalties;
  const upper = ledger.floorMs;
  if (!commit || upper <= nowMs) return;
  const lower = Math.min(...floorsMs);
  const now = (atMs: number): number => {
    if (atMs <= nowMs - 3) return atMs;
    return atMs <= lower ? nowMs - 2 : atMs <= upper ? nowMs - 1 : nowMs;
  };
  attempts.move(nowMs - 3, now);
  ledger.penalties = { ...penalties, floorsMs: [now(floorsMs[0]), now(floorsMs[1])] };
}

/** The attempts that count for each tier. */
type Counts = readonly number[];

const countsOf = ([shortCount = 0, longCount = shortCount]: Counts): LimitCounts => ({
  shortCount,
  longCount,
});

/** Counts the attempts of each window. */
const countWindows = (ask: Ask): Counts =>
  windowStarts(ask).map((fromMs) => ask.ledger.attempts.countAfter(fromMs));

const windowStarts = ({ ledger: { penalties }, rules, nowMs }: Ask): number[] =>
  rules.tiers.map(({ windowMs }, i) => Math.max(nowMs - windowMs, penalties.floorsMs[i] as number));

/** Drops what is older than all windows, and counts the rest. An attempt ahead of the clock counts as one of now. */
function countAndTidy(ask: Ask): Counts {
  const { attempts } = ask.ledger;
  const starts = windowStarts(ask);
  attempts.dropUpTo(Math.min(...starts));
  const latestMs = countedAt(ask);
  if (ask.commit && (attempts.newest?.atMs ?? 0) > latestMs) attempts.move(latestMs, () => latestMs);
  return starts.map((fromMs) => attempts.countAfter(fromMs));
}

function countAttempts(ask: Ask): Counts {
  stepBack(ask);
  // To clear an empty map takes longer than to count.
  if (ask.ledger.inFlight.size > 0) ask.ledger.inFlight.clear();
  return countAndTidy(ask);
}

/** Counts the attempts, with those calls whose flight has lapsed. A flight ahead of the clock begins now. */
function countWithFlights(ask: Ask): Counts {
  stepBack(ask);
  const { attempts, inFlight } = ask.ledger;
  for (const [callId, flight] of inFlight) {
    const { beganMs, renewedMs, cost } = flight;
    if (ask.commit) {
      flight.beganMs = Math.min(beganMs, ask.nowMs);
      flight.renewedMs = Math.min(renewedMs, ask.nowMs);
    }
    if (renewedMs > ask.nowMs - IN_FLIGHT_MS) continue;
    inFlight.delete(callId);
    attempts.add(callId, flight.beganMs, cost);
  }
  return countAndTidy(ask);
}

/** When a call counts. It comes after what has set a block, so that it counts for the next one. */
const countedAt = ({ ledger, nowMs }: Ask): number => Math.max(nowMs, ledger.floorMs + 1);

const fullTiers = ({ tiers }: LimitRules, counts: Counts, cost: number): boolean[] =>
  tiers.map(({ threshold }, i) => (counts[i] as number) + cost >= threshold);

/** Counts a call of a log of attempts alone. */
function addAttempt(ask: Ask): void {
  const { ledger, rules, nowMs } = ask;
  const { length } = ledger.attempts;
  if (length === 0 || ledger.endsAtMs < nowMs + renewAttemptsMs(rules))
    ledger.endsAtMs = nowMs + keepAttemptsMs(rules);
  addCall(ask);
}

/** Counts a call in flight. */
function addEnded(ask: Ask): void {
  ask.ledger.endsAtMs = ask.nowMs + keepMs(ask.rules);
  addCall(ask);
}

function addCall(ask: Ask): void {
  const { ledger, cost, callId } = ask;
  ledger.inFlight.delete(callId);
  ledger.attempts.add(callId, countedAt(ask), cost);
}

function addInFlight({ ledger, rules, cost, callId, nowMs }: Ask): void {
  if (!ledger.knows(callId)) ledger.inFlight.set(callId, { beganMs: nowMs, renewedMs: nowMs, cost });
  ledger.endsAtMs = nowMs + keepMs(rules);
}

/** Returns how long a call waits for room in a tier. */
function waitForRoom(
  { ledger: { attempts }, rules, nowMs }: Ask,
  needed: number,
  counts: Counts,
  i: number,
): number {
  const { threshold, windowMs } = rules.tiers[i] as TierRules;
  const count = counts[i] as number;
  const excess = count + needed - threshold + 1;
  if (excess < 1 || excess > count) return 0;
  return untilLeft(attempts.at(attempts.length - count + excess - 1) as Attempt, windowMs, nowMs);
}

/** Returns how long it takes until an attempt leaves the window. */
const untilLeft = ({ atMs }: Attempt, windowMs: number, nowMs: number): number =>
  Math.min(atMs - nowMs, 0) + windowMs;

/** @param full - which tiers are. The longest of them blocks. */
function setBlock(ask: Ask, full: readonly boolean[], counts: Counts): BackendDecision {
  const { ledger, rules, callId, nowMs } = ask;
  const newestMs = (ledger.attempts.newest as Attempt).atMs;
  const { floorsMs, strikes, struckBy } = ledger.penalties;
  const at = full.lastIndexOf(true);
  const tier = rules.tiers[at] as TierRules;
  const blockMs = Math.floor(
    Math.min(rules.maxBlockMs, tier.blockMs * rules.factor ** (strikes[at] as number)),
  );
  const isFirst = strikes.every((each) => each === 0);
  ledger.penalties = {
    endsAtMs: nowMs + rules.penaltiesTtlMs + blockMs,
    floorsMs: [full[0] ? newestMs : floorsMs[0], full[1] ? newestMs : floorsMs[1]],
    strikes: at === 0 ? [strikes[0] + 1, strikes[1]] : [strikes[0], strikes[1] + 1],
    struckBy: isFirst || struckBy === routeOf(callId) ? routeOf(callId) : '*',
  };
  return newBlock(ask, at === 0 ? 'temp' : 'long', countsOf(counts), blockMs);
}

export function newBlock(
  { ledger, nowMs }: Ask,
  scope: LimitScope,
  counts: LimitCounts,
  blockMs: number,
): BackendDecision {
  ledger.block = { scope, reason: scope, ...counts, endsAtMs: nowMs + blockMs };
  return Object.assign(denied(counts, blockMs, scope, scope, true), { isNew: true });
}

const allowed = ({ rules }: Ask, counts: Counts): BackendDecision => ({
  status: 'allowed',
  ...countsOf(counts),
  resetMs: (counts[0] as number) > 0 ? rules.tiers[0].windowMs : 0,
});

export const denied = (
  counts: LimitCounts,
  retryAfterMs: number,
  reason = 'temp',
  scope: LimitScope = 'temp',
  isBlock = false,
): BackendDecision => ({ status: 'denied', scope, reason, retryAfterMs, ...counts, blocked: isBlock });

export const blocked = (
  { scope, reason, shortCount, longCount, endsAtMs }: Block,
  nowMs: number,
): BackendDecision => denied({ shortCount, longCount }, endsAtMs - nowMs, reason, scope, true);

/** Returns the route in the id of a call. */
export const routeOf = (callId: string): string => callId.slice(CALL_ID_LENGTH);

const denyUntilRoom = (ask: Ask, counts: Counts): BackendDecision =>
  denied(countsOf(counts), waitForRoom(ask, ask.cost, counts, 0));

export function attempt(ask: Ask): BackendDecision {
  const { ledger, rules, cost, callId, commit } = ask;
  const counts = countAttempts(ask);
  if (ledger.attempts.has(callId)) return allowed(ask, counts);
  const full = fullTiers(rules, counts, cost);
  const blocks = full.includes(true);
  if (blocks && rules.tiers[0].blockMs === 0) return denyUntilRoom(ask, counts);
  if (!commit) return blocks ? denied(countsOf(counts), 1) : allowed(ask, counts);
  addAttempt(ask);
  const counted = counts.map((count) => count + cost);
  return blocks ? setBlock(ask, full, counted) : allowed(ask, counted);
}

function enterWith(ask: Ask, needed: number): BackendDecision {
  const { ledger, rules, callId, commit } = ask;
  const known = ledger.knows(callId);
  const counts = countWithFlights(ask);
  if (known) return allowed(ask, counts);
  const waitMs = Math.max(...counts.map((_, i) => waitForRoom(ask, needed, counts, i)));
  if (waitMs > 0) return denied(countsOf(counts), waitMs);
  if (fullTiers(rules, counts, needed + ledger.inFlightCost()).includes(true))
    return denied(countsOf(counts), BUSY_RETRY_MS, 'busy');
  if (commit) addInFlight(ask);
  return allowed(ask, counts);
}

export const enter = (ask: Ask): BackendDecision =>
  enterWith(ask, ask.rules.tiers[0].blockMs === 0 ? ask.cost : 0);

export const reserve = (ask: Ask): BackendDecision => enterWith(ask, ask.cost);

function settle(ask: Ask, next: number, blocks: boolean): BackendDecision {
  const { ledger, rules, callId, nowMs } = ask;
  stepBack(ask);
  if (!ledger.attempts.has(callId)) addEnded(ask);
  const block = ledger.liveBlock(nowMs);
  if (block) return blocked(block, nowMs);
  const counts = countWithFlights(ask);
  const full = fullTiers(rules, counts, next);
  return blocks && rules.tiers[0].blockMs > 0 && full.includes(true)
    ? setBlock(ask, full, counts)
    : allowed(ask, counts);
}

export const confirm = (ask: Ask): BackendDecision => settle(ask, 0, true);
export const grant = (ask: Ask): BackendDecision => settle(ask, 1, true);
export const fill = (ask: Ask): BackendDecision => settle(ask, 0, false);

export function peek(ask: Ask): BackendDecision {
  const { ledger, rules, cost, nowMs } = ask;
  const counts = countWindows(ask);
  const [{ blockMs, windowMs }] = rules.tiers;
  if (blockMs === 0 && fullTiers(rules, counts, cost)[0]) return denyUntilRoom(ask, counts);
  const newest = counts[0] ? ledger.attempts.newest : undefined;
  return {
    status: 'allowed',
    ...countsOf(counts),
    resetMs: newest ? untilLeft(newest, windowMs, nowMs) : 0,
  };
}
