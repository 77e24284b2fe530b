import { randomFillSync } from 'node:crypto';

const IDS_A_POOL = 256;

/**
 * Returns a function that makes ids of so many bytes from a cryptographic random generator, in base64url. The bytes are drawn
 * many ids at a time, because a system call for each id would cost more than the rest of a call.
 */
export function randomIds(bytes: number): () => string {
  const pool = Buffer.allocUnsafeSlow(IDS_A_POOL * bytes);
  let offset = pool.length;
  return () => {
    if (offset === pool.length) {
      randomFillSync(pool);
      offset = 0;
    }
    return pool.toString('base64url', offset, (offset += bytes));
  };
}

/** Returns 128 random bits, which nobody can guess, as 22 base64url characters. */
export const randomId = randomIds(16);
