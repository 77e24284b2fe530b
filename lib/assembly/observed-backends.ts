import type { CounterBackend } from '../counter/counter.backend.js';
import {
  type BackendDecision,
  type BackendDenied,
  keyOf,
  type LimitBackend,
  type LimitCheck,
  type Subject,
} from '../limit/limit.backend.js';
import type { FenceBackend } from '../lock/fence.backend.js';
import type { SecretBackend, SettleReply, OutcomeReply } from '../secret/secret.backend.js';
import { type Descriptions, observe } from '../telemetry/observe.js';
import type { Emit, Facts } from '../telemetry/telemetry.types.js';
import type { Backends } from './backends.js';
import { observedBudgets } from './observed-budgets.js';
import { observedLocks } from './observed-locks.js';

/** Returns backends that emit an event for each operation. Without a listener they are the same objects. */
export function observedBackends(backends: Backends, emit: Emit | undefined): Backends {
  if (!emit) return backends;
  const { lock, fence, limit, limitFallback, budget, secret, counter } = backends;
  return {
    lock: observedLocks(lock, emit),
    fence: observe(fence, 'lock', FENCE, emit),
    limit: observe(limit, 'limit', LIMIT, emit),
    limitFallback:
      limitFallback &&
      observe(limitFallback, 'limit', LIMIT_FALLBACK, (observation) =>
        emit({ ...observation, degraded: true }),
      ),
    budget: observedBudgets(budget, emit),
    secret: observe(secret, 'secret', SECRET, emit),
    counter: observe(counter, 'limit', COUNTER, emit),
  };
}

const ofSubject = ({ policy, identity }: Subject): Facts => ({
  policy: policy.name,
  key: keyOf(identity),
});

/** Returns the reason for an event. It leaves out the text that was passed to `block()`, which may be private. */
const limitReason = ({ reason, scope }: BackendDenied): string => (reason === 'busy' ? reason : scope);

const ofDecision = (decision: BackendDecision | undefined, subject: Subject): Facts => ({
  ...ofSubject(subject),
  ...(decision?.status === 'denied' ? { reason: limitReason(decision) } : {}),
});

/** Describes a call against several limits by one event. It names the denied decision with the longest wait. */
function ofDecisions(decisions: readonly BackendDecision[] = [], checks: readonly LimitCheck[]): Facts {
  let decisive = 0;
  for (const [i, decision] of decisions.entries())
    if (deniedForMs(decision) > deniedForMs(decisions[decisive])) decisive = i;
  return ofDecision(decisions[decisive], checks[decisive] as LimitCheck);
}

const deniedForMs = (decision: BackendDecision | undefined): number =>
  decision?.status === 'denied' ? decision.retryAfterMs : 0;

const LIMIT: Descriptions<LimitBackend> = {
  check: ofDecisions,
  confirm: ofDecision,
  withdraw: (_, check) => ofSubject(check),
  peek: ofDecision,
  forgive: (_, subject) => ofSubject(subject),
  reset: (_, subject) => ofSubject(subject),
  block: (_, subject) => ofSubject(subject),
  unblock: (_, subject) => ofSubject(subject),
};

const FENCE: Descriptions<FenceBackend> = {
  apply: (result, { resource, lockId }) => ({
    type: 'fence',
    key: resource,
    lockId,
    ...(result?.ok === false ? { reason: 'overtaken' } : {}),
  }),
  get: (_, key) => ({ type: 'fence.get', key }),
};

/**
 * The operations that the fallback runs in place of `limit`. `forgive`, `reset`, `block` and `unblock` run on both, and
 * `limit` has reported them.
 */
const LIMIT_FALLBACK: Partial<Descriptions<LimitBackend>> = {
  check: LIMIT.check,
  confirm: LIMIT.confirm,
  withdraw: LIMIT.withdraw,
  peek: LIMIT.peek,
};

const COUNTER: Descriptions<CounterBackend> = {
  increment: (reply, { key }) => ({
    type: 'counter.increment',
    key,
    ...(reply?.ok === false ? { reason: 'exceeded' } : {}),
  }),
  peek: (_, key) => ({ type: 'counter.peek', key }),
  reset: (_, key) => ({ type: 'counter.reset', key }),
};

/** The outcomes of a secret's operations that are not refusals. */
const SECRET_DONE: ReadonlySet<string> = new Set(['live', 'shown', 'settled']);

const ofSecret = (
  reply: Partial<OutcomeReply<string>> | string | undefined,
  { tag }: { tag: string },
  isDone = (outcome: string): boolean => SECRET_DONE.has(outcome),
): Facts => {
  const { outcome, label } = typeof reply === 'string' ? { outcome: reply } : (reply ?? {});
  return {
    key: tag,
    ...(outcome === undefined || isDone(outcome) ? {} : { reason: outcome }),
    ...(label ? { label } : {}),
  };
};

const ofSettled = (reply: SettleReply | undefined, view: { tag: string }): Facts => ofSecret(reply, view);

const SECRET: Descriptions<SecretBackend> = {
  create: (reply, { tag, label }) => ofSecret(typeof reply === 'string' ? reply : { label }, { tag }),
  view: (reply, view) =>
    ofSecret(
      typeof reply === 'object' && reply.outcome === 'burned_by_you'
        ? { ...reply, outcome: 'burned' }
        : reply,
      view,
    ),
  peek: (reply, tag) => ofSecret(reply, { tag }),
  burn: (reply, burn) => ofSecret(reply, burn, (outcome) => outcome.startsWith('burned')),
  status: (reply, receipt) => ofSecret(reply, receipt, (outcome) => outcome !== 'not_found'),
  confirm: ofSettled,
  release: ofSettled,
};
