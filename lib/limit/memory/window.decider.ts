import type { BackendDecision, LimitCounts } from '../limit.backend.js';
import type { Window } from './ledger.js';
import { type Ask, denied } from './limit.steps.js';

/** Counts a call in a fixed window, if it fits. */
export function window({ ledger, rules, cost, callId, nowMs, commit }: Ask): BackendDecision {
  const { shortWindowMs: windowMs } = rules;
  const fresh = { count: 0, windowMs, endsAtMs: nowMs + windowMs, lastCall: '', lastForgiven: '' };
  const open = ledger.openWindow(nowMs, commit) ?? fresh;
  const leftMs = Math.min(open.endsAtMs - nowMs, open.windowMs, windowMs);
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

const countsOf = ({ count }: Window): LimitCounts => ({ shortCount: count, longCount: count });
