import { randomFillSync } from 'node:crypto';
import { normalizeKey } from '../keys.js';
import type { ResolvedPolicy } from './limit.policy.js';

/** How long a call may be in flight before it stops taking up room, in ms: its process may have died. */
export const IN_FLIGHT_MS = 60_000;
/** How long guards may take to let a call in flight pass, in ms, where nobody tells that one has refused it. */
export const GUARDS_MS = 30_000;
/** When to ask again if calls in flight take up the rest, in ms. */
export const BUSY_RETRY_MS = 1_000;
/** How much longer than its window an attempt is kept, in ms: for a clock that steps back (seed 003). */
export const SLACK_MS = 60_000;

/** The longest reason of a block by hand, in characters. */
export const MAX_REASON_LENGTH = 200;

const CALL_ID_BYTES = 6;
const pool = Buffer.allocUnsafeSlow(512 * CALL_ID_BYTES);
let poolOffset = pool.length;

/** Names one call among those of its window: 8 base64url characters. Random bytes are drawn 3 kB at a time. */
export function createCallId(): string {
  if (poolOffset === pool.length) {
    randomFillSync(pool);
    poolOffset = 0;
  }
  return pool.toString('base64url', poolOffset, (poolOffset += CALL_ID_BYTES));
}

/** What is counted together. A name is printable ASCII, so the NUL ends it whatever the key holds. */
export const identityOf = ({ name }: Pick<ResolvedPolicy, 'name'>, key: string): string =>
  `${name}\0${normalizeKey(key)}`;

/** The key of an identity. */
export const keyOf = (identity: string): string => identity.slice(identity.indexOf('\0') + 1);
