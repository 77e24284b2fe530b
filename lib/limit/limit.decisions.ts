import type { BackendAllowed, BackendDecision, BackendDenied } from './limit.backend.js';
import { type PolicySubject, remainingOf, type ResolvedPolicy } from './limit.policy.js';
import type { AllowedDecision, DeniedDecision, LimiterDecision } from './limit.types.js';

/** A decision, and the policy that made it. */
export interface PolicyDecision {
  readonly decision: LimiterDecision;
  readonly policy: ResolvedPolicy;
}

/** Returns the denied decision with the longest wait. If all limits allow the call, returns the one with least `remaining`. */
export function decisive(
  subjects: readonly PolicySubject[],
  decisions: readonly (BackendDecision | undefined)[],
  degraded = false,
): PolicyDecision {
  let result: PolicyDecision | undefined;
  for (const [i, { policy }] of subjects.entries()) {
    const ofBackend = decisions[i];
    if (!ofBackend) continue;
    const decision = toDecision(policy, ofBackend, degraded);
    if (!result || severity(decision) > severity(result.decision)) result = { policy, decision };
  }
  return result as PolicyDecision;
}

const severity = (decision: LimiterDecision): number =>
  decision.allowed ? -decision.remaining : decision.retryAfterSecs;

function toDecision(policy: ResolvedPolicy, ofBackend: BackendDecision, degraded: boolean): LimiterDecision {
  const decision = ofBackend.status === 'allowed' ? toAllowed(policy, ofBackend) : toDenied(ofBackend);
  return degraded ? { ...decision, degraded: true } : decision;
}

const toAllowed = (
  policy: ResolvedPolicy,
  { shortCount, longCount, resetMs }: BackendAllowed,
): AllowedDecision => ({
  allowed: true,
  shortCount,
  longCount,
  remaining: remainingOf(policy, shortCount, longCount),
  resetMs,
});

const toDenied = ({ scope, reason, retryAfterMs, shortCount, longCount }: BackendDenied): DeniedDecision => ({
  allowed: false,
  scope,
  reason,
  retryAfterSecs: Math.max(1, Math.ceil(retryAfterMs / 1000)),
  shortCount,
  longCount,
});

/** The decision about a call that `onError: 'open'` lets in uncounted. */
export const uncounted = (): BackendDecision => ({
  status: 'allowed',
  shortCount: 0,
  longCount: 0,
  resetMs: 0,
});
