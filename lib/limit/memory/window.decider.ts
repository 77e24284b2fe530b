import type { BackendDecision, LimitCounts } from '../limit.backend.js';
import type { Window } from './ledger.js';
import { type Ask, denied } from './limit.steps.js';

// redis/window.decider.ts has the same, and says why.

/** Counts a call in a fixed window, if it fits. A denied call sets the block of the policy, or waits until the window ends. */
export function window(ask: Ask): BackendDecision {
  const { ledger, rules, cost, callId, commit } = ask;
  const open = openWindow(ask);
  if (open.lastCall === callId) return allowed(ask, open);
  if (open.count + cost >= rules.shortThreshold)
    return rules.shortBlockMs > 0 ? setBlock(ask, open) : denied(countsOf(open), leftMs(ask, open));
  if (commit) {
    open.count += cost;
    open.lastCall = callId;
    ledger.window = open;
  }
  return allowed(ask, open);
}

export function peekWindow(ask: Ask): BackendDecision {
  const open = openWindow(ask);
  const { cost, rules } = ask;
  const isDenied = open.count + cost >= rules.shortThreshold && rules.shortBlockMs === 0;
  return isDenied ? denied(countsOf(open), leftMs(ask, open)) : allowed(ask, open);
}

function openWindow({ ledger, rules: { shortWindowMs: windowMs }, nowMs, commit }: Ask): Window {
  const fresh = { count: 0, windowMs, endsAtMs: nowMs + windowMs, lastCall: '', lastForgiven: '' };
  return ledger.openWindow(nowMs, commit) ?? fresh;
}

function setBlock({ ledger, rules, cost, nowMs, commit }: Ask, open: Window): BackendDecision {
  if (!commit) return denied(countsOf(open), 1);
  const { shortBlockMs: blockMs } = rules;
  const counts = countsOf({ count: open.count + cost });
  ledger.window = { ...open, count: 0, lastCall: '' };
  ledger.block = { scope: 'temp', reason: 'temp', ...counts, endsAtMs: nowMs + blockMs };
  return Object.assign(denied(counts, blockMs, 'temp', 'temp', true), { isNew: true });
}

const allowed = (ask: Ask, open: Window): BackendDecision => ({
  status: 'allowed',
  ...countsOf(open),
  resetMs: open.count > 0 ? leftMs(ask, open) : 0,
});

const leftMs = ({ rules, nowMs }: Ask, { endsAtMs, windowMs }: Window): number =>
  Math.min(endsAtMs - nowMs, windowMs, rules.shortWindowMs);

const countsOf = ({ count }: Pick<Window, 'count'>): LimitCounts => ({ shortCount: count, longCount: count });
