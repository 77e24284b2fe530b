import { randomFillSync } from 'node:crypto';
import { hashKey, userKey } from '../core/keys.js';
import { LimitError } from './limit.errors.js';
import type { PolicyCheck, ResolvedPolicy } from './limit.policy.js';

/** Returns the policy's name and the key as one text. All calls with the same identity are counted together. */
export const identityOf = ({ name }: Pick<ResolvedPolicy, 'name'>, key: string): string =>
  // A name is printable ASCII, so the first NUL ends it, whatever the key holds.
  `${name}\0${userKey(key)}`;

/** Returns the check of a call under a policy whose numbers do not depend on the request. */
export function checkOf(policy: ResolvedPolicy, key: string): PolicyCheck {
  try {
    return { policy, identity: identityOf(policy, key), cost: policy.cost as number };
  } catch (error) {
    throw LimitError.from(error);
  }
}

/** Returns the key of an identity. */
export const keyOf = (identity: string): string => identity.slice(identity.indexOf('\0') + 1);

const CALL_ID_BYTES = 6;
/** Random bytes for 512 ids. Drawing them in one go is cheaper than drawing 6 bytes a call. */
const pool = Buffer.allocUnsafeSlow(512 * CALL_ID_BYTES);
let poolOffset = pool.length;

/** Returns a random id of 8 base64url characters, which names one call among those of its window. */
export function createCallId(): string {
  if (poolOffset === pool.length) {
    randomFillSync(pool);
    poolOffset = 0;
  }
  return pool.toString('base64url', poolOffset, (poolOffset += CALL_ID_BYTES));
}

/** Returns a name that is valid for a policy. A route that is too long, or not printable ASCII, is hashed. */
export function asName(kind: string, route: string): string {
  const name = `${kind} ${route}`;
  return /^[\x20-\x7e]{1,190}$/.test(name) ? name : `${kind} ${hashKey(name)}`;
}
