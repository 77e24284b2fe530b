import { randomFillSync } from 'node:crypto';

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
