import type { BackendDecision, LimitCounts, LimitRules } from '../limit.backend.js';
import { IN_FLIGHT_MS, SLACK_MS } from '../limit.times.js';
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

/** Counts the attempts of both windows, and with `drops` drops what is older. */
export function countWindows(
  { ledger: { attempts, penalties }, rules, nowMs }: Ask,
  drops: boolean,
): LimitCounts {
  const shortFromMs = Math.max(nowMs - rules.shortWindowMs, penalties.shortFloorMs);
  const longFromMs =
    rules.longThreshold === 0 ? shortFromMs : Math.max(nowMs - rules.longWindowMs, penalties.longFloorMs);
  const counts = {
    shortCount: attempts.countAfter(shortFromMs),
    longCount: attempts.countAfter(longFromMs),
  };
  if (drops) attempts.dropUpTo(Math.min(shortFromMs, longFromMs));
  return counts;
}

export function countAttempts(ask: Ask): LimitCounts {
  // To clear an empty map takes longer than to count.
  if (ask.ledger.inFlight.size > 0) ask.ledger.inFlight.clear();
  return countWindows(ask, true);
}

/**
 * Counts the attempts. A call that was in flight for too long is dropped, or with `lapsedCount` counted, because it was not
 * shown to have failed.
 */
export function countWithFlights(ask: Ask, lapsedCount = false): LimitCounts {
  const { attempts, inFlight } = ask.ledger;
  for (const [callId, { sinceMs, cost }] of inFlight) {
    if (sinceMs > ask.nowMs - IN_FLIGHT_MS) continue;
    inFlight.delete(callId);
    if (lapsedCount) attempts.add(callId, sinceMs, cost);
  }
  return countWindows(ask, true);
}

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

export function addCall({ ledger, rules, cost, callId, nowMs }: Ask): void {
  const { shortFloorMs, longFloorMs } = ledger.penalties;
  ledger.inFlight.delete(callId);
  ledger.attempts.add(callId, Math.max(nowMs, shortFloorMs + 1, longFloorMs + 1), cost);
  ledger.endsAtMs = nowMs + keepMs(rules);
}

export function addInFlight({ ledger, rules, cost, callId, nowMs }: Ask): void {
  if (!ledger.knows(callId)) ledger.inFlight.set(callId, { sinceMs: nowMs, cost });
  ledger.endsAtMs = nowMs + keepMs(rules);
}

const keepMs = ({ shortWindowMs, longWindowMs }: LimitRules): number =>
  Math.max(shortWindowMs, longWindowMs) + SLACK_MS;

export function waitForRoom(
  { ledger: { attempts }, cost, nowMs }: Ask,
  count: number,
  threshold: number,
  windowMs: number,
): number {
  const excess = threshold > 0 ? count + cost - threshold + 1 : 0;
  if (excess < 1 || excess > count) return 0;
  return untilLeft(attempts.at(attempts.length - count + excess - 1) as Attempt, windowMs, nowMs);
}

/** Returns how long it takes until an attempt leaves the window. */
export const untilLeft = ({ atMs }: Attempt, windowMs: number, nowMs: number): number =>
  Math.min(atMs - nowMs, 0) + windowMs;

export function setBlock(
  { ledger, rules, nowMs }: Ask,
  full: { short: boolean; long: boolean },
  counts: LimitCounts,
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
