import type { CounterBackend } from '../counter/counter.backend.js';
import type {
  BackendDecision,
  BackendDenied,
  LimitBackend,
  LimitCheck,
  Subject,
} from '../limit/limit.backend.js';
import { keyOf, nameOf } from '../limit/limit.identity.js';
import type { FenceBackend } from '../lock/fence.backend.js';
import type { OnceBackend } from '../once/once.backend.js';
import type { SecretBackend } from '../secret/secret.backend.js';
import { type Descriptions, observe, refusalIn } from '../telemetry/observe.js';
import type { Emit, Facts } from '../telemetry/telemetry.types.js';
import type { Backends } from './backends.js';
import { observedBudgets } from './observed-budgets.js';
import { observedLocks } from './observed-locks.js';

/** Returns backends that emit an event for each operation. Without a listener they are the same objects. */
export function observedBackends(backends: Backends, emit: Emit | undefined): Backends {
  if (!emit) return backends;
  const { lock, fence, limit, limitFallback, budget, secret, counter, once } = backends;
  const emitDegraded: Emit = (observation) => emit({ ...observation, degraded: true });
  return {
    lock: observedLocks(lock, emit),
    fence: observe(fence, 'lock', FENCE, emit),
    limit: observe(limit, 'limit', LIMIT, emit),
    limitFallback: limitFallback && observe(limitFallback, 'limit', LIMIT_FALLBACK, emitDegraded),
    budget: observedBudgets(budget, emit),
    secret: observe(secret, 'secret', SECRET, emit),
    counter: observe(counter, 'limit', COUNTER, emit),
    once: observe(once, 'once', ONCE, emit),
  };
}

const ofChange = (_: unknown, { policy, identity }: Subject): Facts => ({
  policy: policy.name,
  key: keyOf(identity),
});

/** Returns the reason for an event. It leaves out the text that was passed to `block()`, which may be private. */
const limitReason = ({ reason, scope }: BackendDenied): string => (reason === 'busy' ? reason : scope);

const ofDecision = (decision: BackendDecision | undefined, { policy, identity }: Subject): Facts => ({
  policy: policy.name,
  key: keyOf(identity),
  reason: decision?.status === 'denied' ? limitReason(decision) : undefined,
});

/** Describes a call against several limits by one event. It names the denied decision with the longest wait. */
function ofDecisions(decisions: readonly BackendDecision[] = [], checks: readonly LimitCheck[]): Facts {
  let decisive = 0;
  for (let i = 1; i < decisions.length; i++)
    if (deniedForMs(decisions[i]) > deniedForMs(decisions[decisive])) decisive = i;
  return ofDecision(decisions[decisive], checks[decisive] as LimitCheck);
}

const deniedForMs = (decision: BackendDecision | undefined): number =>
  decision?.status === 'denied' ? decision.retryAfterMs : 0;

/** A note belongs to the check that has set the block. What an operator lists is no operation of the app. */
const LIMIT: Omit<Descriptions<LimitBackend>, 'note' | 'blocked'> = {
  check: ofDecisions,
  confirm: ofDecision,
  renew: ofChange,
  withdraw: ofChange,
  peek: ofDecision,
  forgive: ofChange,
  reset: ofChange,
  block: ofChange,
  unblock: ofChange,
  lift: (_, account) => ({ policy: nameOf(account), key: keyOf(account) }),
  unblockTagged: (_, { tag, policy }) => ({ type: 'unblock', keyHash: tag, policy }),
};

const FENCE: Descriptions<FenceBackend> = {
  apply: (result, { resource: key, lockId }) => ({
    type: 'fence',
    key,
    lockId,
    reason: result?.ok === false ? 'overtaken' : undefined,
  }),
  get: (_, key) => ({ type: 'fence.get', key }),
};

/**
 * The operations that the fallback runs in place of `limit`. `forgive`, `reset`, `block` and `unblock` run on both, and
 * `limit` has reported them.
 */
const { check, confirm, renew, withdraw, peek } = LIMIT;
const LIMIT_FALLBACK = { check, confirm, renew, withdraw, peek };

const COUNTER: Descriptions<CounterBackend> = {
  increment: (reply, { key }) => ({
    type: 'counter.increment',
    key,
    reason: reply?.ok === false ? 'exceeded' : undefined,
  }),
  peek: (_, key) => ({ type: 'counter.peek', key }),
  reset: (_, key) => ({ type: 'counter.reset', key }),
};

/** A claim that finds a result is reported as a `replay`. What an operator lists is no operation of the app. */
const ONCE: Omit<Descriptions<OnceBackend>, 'list'> = {
  claim: (reply, { key }) => ({
    type: reply?.status === 'done' ? 'replay' : 'claim',
    key,
    reason: reply && reply.status !== 'done' && reply.status !== 'claimed' ? reply.status : undefined,
  }),
  renew: (isMine, { key }) => ({ key, reason: isMine === false ? 'overtaken' : undefined }),
  end: (atMs, { key }, end) => ({
    type: typeof end === 'object' ? 'complete' : end === 'failed' ? 'fail' : 'withdraw',
    key,
    reason: atMs === 0 ? 'overtaken' : undefined,
  }),
  get: (_, key) => ({ key }),
  settle: (result, { key }) => ({ key, reason: refusalIn(result) }),
  forget: (result, key) => ({ key, reason: refusalIn(result) }),
};

/** The outcomes of a secret's operations that are not refusals. `view` and `peek` refuse what is burned, `burn` does not. */
const DONE = ['live', 'shown', 'settled'];

/** These tell a service more than a listener. */
const BURNED = new Set(['burned_by_you', 'cut_off']);

const ofSecret = (
  tag: string,
  reply: { readonly outcome?: string; readonly label: string } | string | undefined,
  done: readonly string[] = DONE,
): Facts => {
  const { outcome, label } = typeof reply === 'string' ? { outcome: reply, label: '' } : (reply ?? {});
  const reason = outcome === undefined || done.includes(outcome) ? undefined : outcome;
  return {
    key: tag,
    reason: reason && (BURNED.has(reason) ? 'burned' : reason),
    label: label || undefined,
  };
};

const SECRET: Descriptions<SecretBackend> = {
  create: (reply, { tag, label }) => ofSecret(tag, typeof reply === 'string' ? reply : { label }),
  view: (reply, { tag }) => ofSecret(tag, reply),
  peek: (reply, tag) => ofSecret(tag, reply),
  burn: (reply, { tag }) => ofSecret(tag, reply, ['burned', 'burned_before']),
  status: (reply, { tag }) => ofSecret(tag, reply, ['live', 'leased', 'burned', 'expired']),
  confirm: (reply, { tag }) => ofSecret(tag, reply),
  release: (reply, { tag }) => ofSecret(tag, reply),
};
