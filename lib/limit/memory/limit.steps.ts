import {
  type BackendDecision,
  CALL_ID_LENGTH,
  keepMs,
  type LimitCounts,
  type LimitRules,
} from '../limit.backend.js';
import { IN_FLIGHT_MS } from '../limit.times.js';
import type { LimitScope } from '../limit.types.js';
import type { Attempt } from './attempt-log.js';
import type { Block, Ledger } from './ledger.js';

// The steps that deciders share. redis/limit.fragments.ts has the same, by the same names, and says why.

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
export function stepBack({ ledger, nowMs, commit }: Ask): void {
  const { penalties, attempts } = ledger;
  const { shortFloorMs, longFloorMs } = penalties;
  const upper = Math.max(shortFloorMs, longFloorMs);
  if (!commit || upper <= nowMs) return;
  const lower = Math.min(shortFloorMs, longFloorMs);
  const now = (atMs: number): number => {
    if (atMs <= nowMs - 3) return atMs;
    return atMs <= lower ? nowMs - 2 : atMs <= upper ? nowMs - 1 : nowMs;
  };
  attempts.move(nowMs - 3, now);
  ledger.penalties = { ...penalties, shortFloorMs: now(shortFloorMs), longFloorMs: now(longFloorMs) };
}

/** Counts the attempts of both windows. */
export function countWindows({ ledger: { attempts, penalties }, rules, nowMs }: Ask): LimitCounts {
  const { shortFromMs, longFromMs } = windowStarts(penalties, rules, nowMs);
  return { shortCount: attempts.countAfter(shortFromMs), longCount: attempts.countAfter(longFromMs) };
}

function windowStarts(
  { shortFloorMs, longFloorMs }: Ledger['penalties'],
  { shortWindowMs, longWindowMs, longThreshold }: LimitRules,
  nowMs: number,
): { shortFromMs: number; longFromMs: number } {
  const shortFromMs = Math.max(nowMs - shortWindowMs, shortFloorMs);
  return {
    shortFromMs,
    longFromMs: longThreshold === 0 ? shortFromMs : Math.max(nowMs - longWindowMs, longFloorMs),
  };
}

/** Drops what is older than both windows. An attempt ahead of the clock counts as one of now. */
function tidyAttempts(ask: Ask): void {
  const { ledger, rules, nowMs, commit } = ask;
  const { attempts, penalties } = ledger;
  const { shortFromMs, longFromMs } = windowStarts(penalties, rules, nowMs);
  attempts.dropUpTo(Math.min(shortFromMs, longFromMs));
  if (!commit) return;
  const latestMs = countedAt(ask);
  if ((attempts.newest?.atMs ?? 0) > latestMs) attempts.move(latestMs, () => latestMs);
}

export function countAttempts(ask: Ask): LimitCounts {
  stepBack(ask);
  // To clear an empty map takes longer than to count.
  if (ask.ledger.inFlight.size > 0) ask.ledger.inFlight.clear();
  tidyAttempts(ask);
  return countWindows(ask);
}

/** Counts the attempts, with those calls whose flight has lapsed. A flight ahead of the clock begins now. */
export function countWithFlights(ask: Ask): LimitCounts {
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
  tidyAttempts(ask);
  return countWindows(ask);
}

/** When a call counts. It comes after what has set a block, so that it counts for the next one. */
const countedAt = ({ ledger: { penalties }, nowMs }: Ask): number =>
  Math.max(nowMs, penalties.shortFloorMs + 1, penalties.longFloorMs + 1);

export function fullTiers(
  rules: LimitRules,
  { shortCount, longCount }: LimitCounts,
  cost: number,
): { short: boolean; long: boolean } {
  return {
    short: shortCount + cost >= rules.shortThreshold,
    long: rules.longThreshold > 0 && longCount + cost >= rules.longThreshold,
  };
}

export function addCall(ask: Ask, keptMs: number): void {
  const { ledger, cost, callId, nowMs } = ask;
  ledger.inFlight.delete(callId);
  ledger.attempts.add(callId, countedAt(ask), cost);
  ledger.endsAtMs = nowMs + keptMs;
}

export function addInFlight({ ledger, rules, cost, callId, nowMs }: Ask): void {
  if (!ledger.knows(callId)) ledger.inFlight.set(callId, { beganMs: nowMs, renewedMs: nowMs, cost });
  ledger.endsAtMs = nowMs + keepMs(rules);
}

export function waitForRoom(
  { ledger: { attempts }, nowMs }: Ask,
  needed: number,
  count: number,
  threshold: number,
  windowMs: number,
): number {
  const excess = threshold > 0 ? count + needed - threshold + 1 : 0;
  if (excess < 1 || excess > count) return 0;
  return untilLeft(attempts.at(attempts.length - count + excess - 1) as Attempt, windowMs, nowMs);
}

/** Returns how long it takes until an attempt leaves the window. */
export const untilLeft = ({ atMs }: Attempt, windowMs: number, nowMs: number): number =>
  Math.min(atMs - nowMs, 0) + windowMs;

export function setBlock(
  ask: Ask,
  full: { short: boolean; long: boolean },
  counts: LimitCounts,
): BackendDecision {
  const { ledger, rules, callId, nowMs } = ask;
  const newestMs = (ledger.attempts.newest as Attempt).atMs;
  const { shortFloorMs, longFloorMs, shortStrikes, longStrikes, struckBy } = ledger.penalties;
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
    struckBy: shortStrikes + longStrikes === 0 || struckBy === routeOf(callId) ? routeOf(callId) : '*',
  };
  return newBlock(ask, scope, counts, blockMs);
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

export const allowed = ({ rules }: Ask, counts: LimitCounts): BackendDecision => ({
  status: 'allowed',
  ...counts,
  resetMs: counts.shortCount > 0 ? rules.shortWindowMs : 0,
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
