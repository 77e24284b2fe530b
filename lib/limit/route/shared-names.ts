import { SyncGuardConfigError } from '../../core/errors.js';
import type { ResolvedPolicy } from '../limit.policy.js';

/**
 * Checks at boot that policies of the same name can share their counts. With different windows, the shorter one would
 * remove attempts that the longer one still counts. On one route, each would take the other's count of a call for its own.
 */
export class SharedNames {
  readonly #known = new Map<string, ResolvedPolicy>();

  /** @throws SyncGuardConfigError RATE_LIMIT_NAME */
  add(policy: ResolvedPolicy): void {
    // The algorithms keep their counts under different names.
    const shared = `${policy.algorithm} ${policy.name}`;
    const known = this.#known.get(shared) ?? policy;
    if (windowOf(known) !== windowOf(policy))
      throw clash(policy, `have windows of ${windowOf(known)} and of ${windowOf(policy)} ms`);
    this.#known.set(shared, policy);
  }

  /**
   * @param policies - the policies of one route
   * @throws SyncGuardConfigError RATE_LIMIT_NAME
   */
  verifyRoute(policies: readonly ResolvedPolicy[]): void {
    for (const [i, policy] of policies.entries())
      if (policies.slice(0, i).some((other) => isTakenFor(other, policy)))
        throw clash(policy, 'count by the same key on one route');
  }
}

/** Returns the longest window. Attempts are kept for that long. */
const windowOf = ({ rules }: ResolvedPolicy): number => Math.max(rules.shortWindowMs, rules.longWindowMs);

/**
 * Returns whether two policies of one route would mix up their counts. Two equal policies do not: a class and its method may
 * have the same limit, which then counts once.
 */
const isTakenFor = (one: ResolvedPolicy, other: ResolvedPolicy): boolean =>
  one.name === other.name &&
  keyPartsOf(one).length === keyPartsOf(other).length &&
  keyPartsOf(one).every((part, i) => part === keyPartsOf(other)[i]) &&
  (one.count !== other.count ||
    one.dynamicLimit !== other.dynamicLimit ||
    JSON.stringify(one.rules) !== JSON.stringify(other.rules));

const keyPartsOf = ({ keyBy }: ResolvedPolicy): readonly unknown[] => [keyBy].flat();

const clash = ({ name }: ResolvedPolicy, what: string): SyncGuardConfigError =>
  new SyncGuardConfigError(`Two policies named ${name} ${what}.`, {
    code: 'RATE_LIMIT_NAME',
    hint: 'Policies of the same name count together. Give each a name of its own, or use one policy with `temp` and `long`.',
  });
