import type { BackendDecision } from '../limit.backend.js';
import type { Window } from './ledger.js';
import { type Ask, denied } from './limit.steps.js';

/**
 * Counts a call in a fixed window, if it fits. A denied call waits until the window ends. That is never longer than a
 * window, even after the clock has stepped back.
 */
export function window({ ledger, rules, cost, callId, nowMs, commit }: Ask): BackendDecision {
  const open = ledger.openWindow(nowMs) ?? newWindow(nowMs + rules.shortWindowMs);
  const leftMs = Math.min(open.endsAtMs - nowMs, rules.shortWindowMs);
  if (open.lastCall !== callId) {
    if (open.count + cost >= rules.shortThreshold) return denied(countsOf(open), leftMs);
    if (commit) {
      open.count += cost;
      open.lastCall = callId;
      ledger.window = open;
    }
  }
  return { status: 'allowed', ...countsOf(open), resetMs: open.count > 0 ? leftMs : 0 };
}

const newWindow = (endsAtMs: number): Window => ({ count: 0, endsAtMs, lastCall: '', lastForgiven: '' });

const countsOf = ({ count }: Window): { shortCount: number; longCount: number } => ({
  shortCount: count,
  longCount: count,
});
