import type { BackendDecision } from '../limit.backend.js';
import { type Ask, denied, newBlock } from './log.decider.js';

// redis/window.decider.ts has the same, and says why.

/** Counts a call in a fixed window, if it fits. A denied call sets the block of the policy, or waits until the window ends. */
export function window(ask: Ask): BackendDecision {
  const { ledger, rules, cost, nowMs, commit } = ask;
  const [tier] = rules.tiers;
  const { endsAtMs, count } = openWindow(ask);
  const counted = { shortCount: count + cost, longCount: count + cost };
  if (counted.shortCount < tier.threshold) {
    if (!commit) return standing(ask);
    ledger.window = { count: counted.shortCount, endsAtMs };
    ledger.block = undefined;
    return { status: 'allowed', ...counted, resetMs: endsAtMs - nowMs };
  }
  if (tier.blockMs > 0) {
    if (!commit) return denied(counted, 1);
    ledger.window = { count: 0, endsAtMs };
    return newBlock(ask, 'temp', counted, tier.blockMs);
  }
  const open = ledger.openWindow(nowMs);
  if (commit && open && endsAtMs < open.endsAtMs) {
    ledger.window = { count, endsAtMs };
    ledger.block = undefined;
  }
  return denied({ shortCount: count, longCount: count }, endsAtMs - nowMs);
}

export const peekWindow = (ask: Ask): BackendDecision =>
  ask.rules.tiers[0].blockMs > 0 ? standing(ask) : window(ask);

/** It ends no later than a window that begins now. */
function openWindow({ ledger, rules, nowMs }: Ask): { count: number; endsAtMs: number } {
  const { count = 0, endsAtMs = Infinity } = ledger.openWindow(nowMs) ?? {};
  return { count, endsAtMs: Math.min(endsAtMs, nowMs + rules.tiers[0].windowMs) };
}

function standing(ask: Ask): BackendDecision {
  const { count, endsAtMs } = openWindow(ask);
  const resetMs = count > 0 ? endsAtMs - ask.nowMs : 0;
  return { status: 'allowed', shortCount: count, longCount: count, resetMs };
}
