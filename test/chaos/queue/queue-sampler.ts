import { setTimeout as sleep } from 'node:timers/promises';
import { createRedisBackend, type RawLockInfo } from '../../../lib/index.js';
import { CLAIM_MS } from '../../../lib/lock/lock.times.js';
import { clientFor } from '../client.js';
import { nowMs } from '../history.js';
import { type HeldTime, QUEUE_KEYS } from './queue-history.js';

const EVERY_MS = 20;
/** Looks that are further apart say nothing of the time between them. */
const FURTHEST_MS = 500;

/** A lock that was handed over, and that nobody has taken yet, lives as long as a claim. */
const isTaken = ({ expiresAtMs, acquiredAtMs }: RawLockInfo): boolean =>
  expiresAtMs - acquiredAtMs > CLAIM_MS;

/**
 * Looks at the locks on the server again and again, until it is stopped: a lock that was granted to a process that stands
 * still, or that was killed, is held, though no caller of that process has said so.
 */
export function sampleLocks(address: object | string): { stop(): Promise<readonly HeldTime[]> } {
  const client = clientFor(address);
  const backend = createRedisBackend(client, { commandTimeoutMs: FURTHEST_MS });
  const held: HeldTime[] = [];
  let isStopped = false;

  async function sample(key: string): Promise<void> {
    let lockId: string | undefined;
    let fromMs = 0;
    let toMs = 0;
    while (!isStopped) {
      const askedMs = nowMs();
      const lock = await backend.getByKeyRaw(key).catch(() => null);
      const isSame = lock !== null && lock.lockId === lockId && nowMs() - toMs < FURTHEST_MS;
      if (!isSame) {
        if (lockId !== undefined) held.push({ key, fromMs, toMs });
        lockId = lock && isTaken(lock) ? lock.lockId : undefined;
        fromMs = askedMs;
      }
      toMs = askedMs;
      await sleep(EVERY_MS);
    }
    if (lockId !== undefined) held.push({ key, fromMs, toMs });
  }

  const samplers = QUEUE_KEYS.map(sample);
  return {
    async stop() {
      isStopped = true;
      await Promise.all(samplers);
      client.disconnect();
      return held;
    },
  };
}
