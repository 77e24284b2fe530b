import { SyncGuardConfigError } from '../syncguard.errors.js';
import type { ResolvedPolicy } from './limit.policy.js';

/**
 * Boot check: policies of one name keep one history together. Where their windows differ the shorter would take from it
 * what the longer still counts; and on one route they would take each other's count of a call for their own.
 */
export class SharedNames {
  readonly #known = new Map<string, ResolvedPolicy>();

  /** @throws SyncGuardConfigError RATE_LIMIT_NAME */
  add(policy: ResolvedPolicy): void {
    const history = `${policy.algorithm} ${policy.name}`;
    const known = this.#known.get(history) ?? policy;
    if (windowOf(known) !== windowOf(policy))
      throw clash(policy, `have windows of ${windowOf(known)} and of ${windowOf(policy)} ms`);
    this.#known.set(history, policy);
  }

  /**
   * @param policies - of one route
   * @throws SyncGuardConfigError RATE_LIMIT_NAME
   */
  verifyRoute(policies: readonly ResolvedPolicy[]): void {
    for (const [i, policy] of policies.entries())
      if (policies.slice(0, i).some((other) => isTakenFor(other, policy)))
        throw clash(policy, 'count by the same key on one route');
  }
}

/** The longest: so far back the history reaches. */
const windowOf = ({ rules }: ResolvedPolicy): number => Math.max(rules.tempWindowMs, rules.longWindowMs);

/** The same limit twice counts once: a class and its method may both have it. */
const isTakenFor = (one: ResolvedPolicy, other: ResolvedPolicy): boolean =>
  one.name === other.name &&
  keyOf(one).length === keyOf(other).length &&
  keyOf(one).every((part, i) => part === keyOf(other)[i]) &&
  (one.count !== other.count ||
    one.dynamicLimit !== other.dynamicLimit ||
    JSON.stringify(one.rules) !== JSON.stringify(other.rules));

const keyOf = ({ keyBy }: ResolvedPolicy): readonly unknown[] => [keyBy].flat();

const clash = ({ name }: ResolvedPolicy, what: string): SyncGuardConfigError =>
  new SyncGuardConfigError(`Two policies named ${name} ${what}.`, {
    code: 'RATE_LIMIT_NAME',
    hint: 'What has one name counts together. Give each a name of its own, or one policy `temp` and `long`.',
  });
