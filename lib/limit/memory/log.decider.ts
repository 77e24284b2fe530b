import { type BackendDecision, keepAttemptsMs, keepMs, type LimitCounts } from '../limit.backend.js';
import { BUSY_RETRY_MS } from '../limit.times.js';
import {
  addCall,
  addInFlight,
  allowed,
  type Ask,
  blocked,
  countAttempts,
  countWindows,
  countWithFlights,
  denied,
  fullTiers,
  setBlock,
  stepBack,
  untilLeft,
  waitForRoom,
} from './limit.steps.js';

// redis/log.decider.ts has the same functions, by the same names, and says why.

const denyUntilRoom = (ask: Ask, counts: LimitCounts): BackendDecision =>
  denied(
    counts,
    waitForRoom(ask, ask.cost, counts.shortCount, ask.rules.shortThreshold, ask.rules.shortWindowMs),
  );

export function attempt(ask: Ask): BackendDecision {
  const { ledger, rules, cost, callId, commit } = ask;
  const counts = countAttempts(ask);
  if (ledger.attempts.has(callId)) return allowed(ask, counts);
  const full = fullTiers(rules, counts, cost);
  if (full.short && rules.shortBlockMs === 0) return denyUntilRoom(ask, counts);
  const blocks = full.long || full.short;
  if (!commit) return blocks ? denied(counts, 1) : allowed(ask, counts);
  addCall(ask, keepAttemptsMs(rules));
  const counted = { shortCount: counts.shortCount + cost, longCount: counts.longCount + cost };
  return blocks ? setBlock(ask, full, counted) : allowed(ask, counted);
}

function enterWith(ask: Ask, needed: number): BackendDecision {
  const { ledger, rules, callId, commit } = ask;
  const known = ledger.knows(callId);
  const counts = countWithFlights(ask);
  if (known) return allowed(ask, counts);
  const waitMs = Math.max(
    waitForRoom(ask, needed, counts.shortCount, rules.shortThreshold, rules.shortWindowMs),
    waitForRoom(ask, needed, counts.longCount, rules.longThreshold, rules.longWindowMs),
  );
  if (waitMs > 0) return denied(counts, waitMs);
  const taken = fullTiers(rules, counts, needed + ledger.inFlightCost());
  if (taken.short || taken.long) return denied(counts, BUSY_RETRY_MS, 'busy');
  if (commit) addInFlight(ask);
  return allowed(ask, counts);
}

export const enter = (ask: Ask): BackendDecision =>
  enterWith(ask, ask.rules.shortBlockMs === 0 ? ask.cost : 0);

export const reserve = (ask: Ask): BackendDecision => enterWith(ask, ask.cost);

function settle(ask: Ask, next: number, blocks: boolean): BackendDecision {
  const { ledger, rules, callId, nowMs } = ask;
  stepBack(ask);
  if (!ledger.attempts.has(callId)) addCall(ask, keepMs(rules));
  const block = ledger.liveBlock(nowMs);
  if (block) return blocked(block, nowMs);
  const counts = countWithFlights(ask);
  const full = fullTiers(rules, counts, next);
  return blocks && rules.shortBlockMs > 0 && (full.short || full.long)
    ? setBlock(ask, full, counts)
    : allowed(ask, counts);
}

export const confirm = (ask: Ask): BackendDecision => settle(ask, 0, true);
export const grant = (ask: Ask): BackendDecision => settle(ask, 1, true);
export const fill = (ask: Ask): BackendDecision => settle(ask, 0, false);

export function peek(ask: Ask): BackendDecision {
  const { ledger, rules, cost, nowMs } = ask;
  const counts = countWindows(ask);
  if (rules.shortBlockMs === 0 && fullTiers(rules, counts, cost).short) return denyUntilRoom(ask, counts);
  const newest = counts.shortCount > 0 ? ledger.attempts.newest : undefined;
  return {
    status: 'allowed',
    ...counts,
    resetMs: newest ? untilLeft(newest, rules.shortWindowMs, nowMs) : 0,
  };
}
