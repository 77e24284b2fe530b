import type { BackendDecision, LimitCounts } from '../limit.backend.js';
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
  untilLeft,
  waitForRoom,
} from './limit.steps.js';

// redis/log.decider.ts has the same functions, by the same names, and says why.

const denyUntilRoom = (ask: Ask, counts: LimitCounts): BackendDecision =>
  denied(counts, waitForRoom(ask, counts.shortCount, ask.rules.shortThreshold, ask.rules.shortWindowMs));

function count(ask: Ask, counts: LimitCounts): BackendDecision {
  const { ledger, rules, cost, callId, commit } = ask;
  if (ledger.attempts.has(callId)) return allowed(ask, counts);
  const full = fullTiers(rules, counts, cost);
  const blocks = full.long || (full.short && rules.shortBlockMs > 0);
  if (!commit) return blocks ? denied(counts, 1) : allowed(ask, counts);
  addCall(ask);
  const counted = { shortCount: counts.shortCount + cost, longCount: counts.longCount + cost };
  return blocks ? setBlock(ask, full, counted) : allowed(ask, counted);
}

export function attempt(ask: Ask): BackendDecision {
  const { ledger, rules, cost, callId } = ask;
  const counts = countAttempts(ask);
  const { short } = fullTiers(rules, counts, cost);
  return short && rules.shortBlockMs === 0 && !ledger.attempts.has(callId)
    ? denyUntilRoom(ask, counts)
    : count(ask, counts);
}

export function enter(ask: Ask): BackendDecision {
  const { ledger, rules, cost, callId, commit } = ask;
  const counts = countWithFlights(ask);
  const inFlight = ledger.inFlightCost();
  const needed = rules.shortBlockMs === 0 ? cost : 0;
  const busy =
    counts.shortCount + inFlight + needed >= rules.shortThreshold ||
    (rules.longThreshold > 0 && counts.longCount + inFlight >= rules.longThreshold);
  if (busy && !ledger.knows(callId))
    return rules.shortBlockMs === 0 && fullTiers(rules, counts, cost).short
      ? denyUntilRoom(ask, counts)
      : denied(counts, BUSY_RETRY_MS, 'busy');
  if (commit) addInFlight(ask);
  return allowed(ask, counts);
}

export const confirm = (ask: Ask): BackendDecision => count(ask, countWithFlights(ask));

export function reserve(ask: Ask): BackendDecision {
  const { ledger, rules, cost, callId, commit } = ask;
  const known = ledger.knows(callId);
  const counts = countWithFlights(ask, true);
  if (known) return allowed(ask, counts);
  const full = fullTiers(rules, counts, 1);
  if (rules.shortBlockMs > 0 && (full.short || full.long))
    return commit ? setBlock(ask, full, counts) : denied(counts, 1);
  const waitMs = Math.max(
    waitForRoom(ask, counts.shortCount, rules.shortThreshold, rules.shortWindowMs),
    waitForRoom(ask, counts.longCount, rules.longThreshold, rules.longWindowMs),
  );
  if (waitMs > 0) return denied(counts, waitMs);
  const taken = fullTiers(rules, counts, cost + ledger.inFlightCost());
  if (taken.short || taken.long) return denied(counts, BUSY_RETRY_MS, 'busy');
  if (commit) addInFlight(ask);
  return allowed(ask, counts);
}

export function grant(ask: Ask): BackendDecision {
  const { ledger, rules, callId, nowMs } = ask;
  if (!ledger.attempts.has(callId)) addCall(ask);
  const block = ledger.liveBlock(nowMs);
  if (block) return blocked(block, nowMs);
  const counts = countWithFlights(ask, true);
  const full = fullTiers(rules, counts, 1);
  return rules.shortBlockMs > 0 && (full.short || full.long)
    ? setBlock(ask, full, counts)
    : allowed(ask, counts);
}

export function peek(ask: Ask): BackendDecision {
  const { ledger, rules, cost, nowMs } = ask;
  const counts = countWindows(ask, false);
  if (rules.shortBlockMs === 0 && fullTiers(rules, counts, cost).short) return denyUntilRoom(ask, counts);
  const newest = counts.shortCount > 0 ? ledger.attempts.newest : undefined;
  return {
    status: 'allowed',
    ...counts,
    resetMs: newest ? untilLeft(newest, rules.shortWindowMs, nowMs) : 0,
  };
}
