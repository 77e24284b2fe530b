import { identityIn, namesAccount } from './limit.identity.js';
import { joinKeyParts, type Labelled, userIdOf } from '../transport/request-parts.js';
import { keyPath, normalizeAddress } from './key-parts.js';
import { KeyTexts } from './key-texts.js';
import { describeKeyBy } from './limit.key-by.js';
import type { ResolvedLimitOptions } from './limit.options.js';
import type { ResolvedPolicy } from './limit.policy.js';
import { invalidCall } from './limit.validate.js';
import type { KeyParts } from './policy.types.js';

/** Makes the keys that routes make, of values that the app knows: for support, and for what comes after a password reset. */
export class NamedKeys {
  readonly #texts: KeyTexts;

  constructor(private readonly options: ResolvedLimitOptions) {
    this.#texts = new KeyTexts(options.normalize);
  }

  /** Returns the key of each policy. Refuses parts that are missing, and those that no policy counts by. */
  keysOf(policies: readonly ResolvedPolicy[], parts: KeyParts): string[] {
    verifyNames(policies, parts, policies.flatMap(labelsOf));
    return policies.map((policy) => this.#keyOf(policy, parts));
  }

  /** Returns the identity of the account under each policy that counts by one, with its address or without. */
  accountsOf(policies: readonly ResolvedPolicy[], parts: KeyParts): string[] {
    const byAccount = policies.filter((policy) => labelsOf(policy).some(namesAccount));
    if (byAccount.length === 0)
      throw invalidCall(
        `No limit of ${policies[0]?.name} counts by an account.`,
        'Name the policy whose limits have locked the account out.',
      );
    verifyNames(policies, parts, byAccount.flatMap(labelsOf).filter(namesAccount));
    return byAccount.map((policy) => {
      const found = labelsOf(policy)
        .filter(namesAccount)
        .map((label) => this.#part(policy, parts, label));
      const known = found.filter((part) => part !== undefined);
      if (known.length < found.length)
        throw invalidCall(
          `The parts name no account of the policy ${policy.name}.`,
          'Pass texts that are not empty.',
        );
      return identityIn(policy.name, joinKeyParts(known));
    });
  }

  /** As `KeyResolver` does for a request: without one of its values, a call counts by address. */
  #keyOf(policy: ResolvedPolicy, parts: KeyParts): string {
    const labels = labelsOf(policy);
    const place = labels.includes('route') ? [this.#part(policy, parts, 'route')] : [];
    const found = labels
      .filter((label) => label !== 'route')
      .map((label) => this.#part(policy, parts, label));
    const known = found.filter((part) => part !== undefined);
    const all = known.length > 0 && known.length === found.length ? known : [this.#part(policy, parts, 'ip')];
    return joinKeyParts([...all, ...place] as Labelled[]);
  }

  #part(policy: ResolvedPolicy, parts: KeyParts, label: string): Labelled | undefined {
    const value = parts[label];
    if (value === undefined || value === null)
      throw invalidCall(
        `The parts lack \`${label}\`, by which the policy ${policy.name} counts.`,
        `It counts by ${describeKeyBy(policy.keyBy)}. Give the values that a request has: \`{ '${label}': ... }\`.`,
      );
    const text = this.#textOf(policy, label, value);
    return text === undefined ? undefined : [label, text];
  }

  #textOf(policy: ResolvedPolicy, label: string, value: unknown): string | undefined {
    if (label === 'ip') return normalizeAddress(String(value), this.options.ipv6Subnet);
    if (label === 'user' || label === 'key') return userIdOf(value);
    if (label === 'route') return String(value);
    return this.#texts.of(keyPath(label), value, policy.namesAccount);
  }
}

/** The labels of the parts of a key. What a function returns is labelled `key`. */
const labelsOf = ({ keyBy }: ResolvedPolicy): string[] =>
  [keyBy].flat().map((part) => (typeof part === 'string' ? part : 'key'));

function verifyNames(policies: readonly ResolvedPolicy[], parts: KeyParts, labels: readonly string[]): void {
  const known = [...new Set([...labels, ...(labels.includes('route') ? ['ip'] : [])])];
  for (const name of Object.keys(parts))
    if (!known.includes(name))
      throw invalidCall(
        `No limit of ${policies[0]?.name} counts by \`${name.slice(0, 60)}\`.`,
        `The parts are: ${known.join(', ')}.`,
      );
}
