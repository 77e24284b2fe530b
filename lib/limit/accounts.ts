import { joinKeyParts, type Labelled } from '../transport/request-parts.js';
import { identityIn } from './limit.backend.js';

/** What says where a call comes from, and not for whom. */
const PLACES: ReadonlySet<string> = new Set(['ip', 'route']);

export const namesAccount = (label: string): boolean => !PLACES.has(label);

/**
 * Returns the identity without its address and route: the policy and the account, from wherever it is used. Undefined if
 * the identity has no account, or if its key is not of a route.
 */
export function accountOf(identity: string): string | undefined {
  const [name = '', key = ''] = identity.split('\0', 2);
  if (!key.startsWith('[["')) return undefined;
  try {
    const parts = (JSON.parse(key) as Labelled[]).filter(([label]) => namesAccount(label));
    // A window that a function has chosen is part of the name.
    return parts.length === 0 ? undefined : identityIn(name.replace(/;w=\d+$/, ''), joinKeyParts(parts));
  } catch {
    return undefined; // The app has passed such a text as a key.
  }
}
