import { setTimeout as sleep } from 'node:timers/promises';
import { monotonicMs } from '../clock.js';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 2_000;

/**
 * Releases in the background what could not be released in the foreground, so that a lock which nobody uses
 * does not stand until its TTL. Ends when `attempt` says so, or when the TTL has ended the lock anyway.
 */
export async function retryRelease(attempt: () => Promise<boolean>, ttlMs: number): Promise<void> {
  const endMs = monotonicMs() + ttlMs;
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
    if (await attempt().catch(() => false)) return;
    if (monotonicMs() + pauseMs >= endMs) return;
    await sleep(pauseMs, undefined, { ref: false });
  }
}
