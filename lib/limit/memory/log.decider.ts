import type { BackendDecision } from '../limit.backend.js';
import { BUSY_RETRY_MS } from '../limit.times.js';
import {
  addAttempt,
  addEnded,
  addInFlight,
  allowed,
  type Ask,
  blocked,
  type Counts,
  countAttempts,
  countsOf,
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
