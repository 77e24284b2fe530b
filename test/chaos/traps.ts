import { MemoryOnceBackend } from '../../lib/once/memory/once.memory-backend.js';
import type { OnceBackend } from '../../lib/once/once.backend.js';
import { RedisOnceBackend } from '../../lib/once/redis/once.redis-backend.js';
import { nowMs } from './history.js';

/** The awaits of a call that is answered once, at which its process may die or stand still. */
export const AWAITS = [
  ...['claim, before it', 'claim, on its way', 'claim, answered', 'in the body', 'after the effect'],
  ...['renewal, on its way', 'end, before it', 'end, on its way', 'end, answered', 'its caller was told'],
] as const;
export type Await = (typeof AWAITS)[number];

/** What happens to a process the next time that one of its calls comes to this place. */
export interface Trap {
  readonly at: Await;
  /** How long it stands still. 0: it dies. */
  readonly ms: number;
}

let trap: Trap | undefined;

export function setTrap(given: Trap): void {
  trap = given;
}

/** Called by every call at each of its awaits. */
export function pass(place: Await): void {
  if (trap?.at !== place) return;
  const { ms } = trap;
  trap = undefined;
  if (ms === 0) process.kill(process.pid, 'SIGKILL');
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** A command is on its way for a ms or two. */
const WAY_MS = 2;

async function onItsWay<T>(place: Await, reply: Promise<T>): Promise<T> {
  if (trap?.at === place) setTimeout(() => pass(place), Math.random() * WAY_MS);
  return reply;
}

/** What was seen of the claims and ends of this process. */
export interface Seen {
  /** When the claim was sent that was granted with a fence. */
  claimedMs(key: string, fence: string): number;
}

/** Sets the traps of claims, renewals and ends, and tells of each result that was kept. */
export function watchBackends(onKept: (key: string, fence: string) => void): Seen {
  const claims = new Map<string, number>();
  const fences = new Map<string, string>();
  for (const { prototype } of [MemoryOnceBackend, RedisOnceBackend] as { prototype: OnceBackend }[]) {
    const { claim, renew, end } = prototype;
    prototype.claim = async function (given, options) {
      pass('claim, before it');
      const sentMs = nowMs();
      const reply = await onItsWay('claim, on its way', claim.call(this, given, options));
      if (reply.status === 'claimed') {
        claims.set(`${given.key} ${reply.fence}`, sentMs);
        fences.set(given.nonce, reply.fence);
      }
      pass('claim, answered');
      return reply;
    };
    prototype.renew = function (run, leaseMs) {
      return onItsWay('renewal, on its way', renew.call(this, run, leaseMs));
    };
    prototype.end = async function (run, how) {
      pass('end, before it');
      const atMs = await onItsWay('end, on its way', end.call(this, run, how));
      if (typeof how === 'object' && atMs > 0) onKept(run.key, fences.get(run.nonce) ?? '');
      pass('end, answered');
      return atMs;
    };
  }
  return { claimedMs: (key, fence) => claims.get(`${key} ${fence}`) ?? NaN };
}
