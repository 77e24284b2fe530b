import { userKey } from '../core/keys.js';
import type { ResolvedPolicy } from './limit.policy.js';

/** Returns the policy's name and the key as one text. All calls with the same identity are counted together. */
export const identityOf = ({ name }: Pick<ResolvedPolicy, 'name'>, key: string): string =>
  // A name is printable ASCII, so the first NUL ends it, whatever the key holds.
  `${name}\0${userKey(key)}`;

/** Returns the key of an identity. */
export const keyOf = (identity: string): string => identity.slice(identity.indexOf('\0') + 1);
