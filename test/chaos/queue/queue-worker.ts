import { closeSync, openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Cluster, Redis } from 'ioredis';
import { createRedisBackend, type LockError } from '../../../lib/index.js';
import { LockService } from '../../../lib/lock/lock.service.js';
import { resolveOptions } from '../../../lib/module/syncguard.options.js';
import { clientFor } from '../client.js';
import { nowMs } from '../history.js';
import { Random } from '../random.js';
import {
  CALLERS,
  type Order,
  QUEUE_KEYS,
  QUEUE_LOCK,
  type QueueEvent,
  type QueueWorkerArguments,
} from './queue-history.js';

// One of several processes with several callers each that wait for the same few locks. It breaks itself when it is told to.

const given = JSON.parse(process.argv[2] ?? '') as QueueWorkerArguments;
const { worker } = given;
const file = openSync(given.file, 'a');
const write = (event: QueueEvent): void => void writeSync(file, JSON.stringify(event) + '\n');

/** The connections that hear hand-overs: copies of the client under a name of their own. */
const listeners: Redis[] = [];
const { duplicate } = Redis.prototype;
Redis.prototype.duplicate = function (this: Redis, options) {
  const copy = duplicate.call(this, options) as Redis;
  if (options?.connectionName === 'syncguard-waiting') listeners.push(copy);
  return copy as never;
};

const client = clientFor(given.address);
const locks = new LockService(
  createRedisBackend(client),
  resolveOptions({ lock: { ...QUEUE_LOCK, retryDelayMs: 50 } }),
);

process.on('unhandledRejection', (reason) =>
  write({ type: 'unhandled', worker, atMs: nowMs(), detail: String(reason) }),
);

let n = 0;
let stopped = false;

async function call(key: string, bodyMs: number, signal?: AbortSignal): Promise<void> {
  const id = n++;
  write({ type: 'asked', worker, n: id, key, atMs: nowMs() });
  let end: string = 'served';
  try {
    await locks.lock(
      async (lock) => {
        const fromMs = nowMs();
        let heldMs = fromMs;
        write({ type: 'entered', worker, n: id, key, fence: lock.fence, atMs: fromMs });
        try {
          do {
            const atMs = nowMs();
            lock.assertHeld();
            heldMs = atMs;
            await sleep(2);
          } while (nowMs() < fromMs + bodyMs);
        } finally {
          write({ type: 'left', worker, n: id, key, heldMs, atMs: nowMs() });
        }
      },
      { key, ...(signal ? { signal } : {}) },
    );
  } catch (error) {
    end = (error as LockError).code;
  }
  write({ type: 'ended', worker, n: id, key, end, atMs: nowMs() });
}

/** Aborts in the instant of a hand-over are likely where bodies are short. */
async function caller(random: Random): Promise<void> {
  while (!stopped) {
    const signal = random.chance(0.15) ? AbortSignal.timeout(random.between(1, 60)) : undefined;
    await call(random.pick(QUEUE_KEYS), random.between(0, 12), signal);
    await random.pause(0, 5);
  }
}

/** Comes in at every millisecond of a claim. */
async function comer(random: Random): Promise<void> {
  while (!stopped) {
    for (let i = 0; i < 50 && !stopped; i++) {
      const lock = await locks
        .acquire({ key: random.pick(QUEUE_KEYS), ttlMs: QUEUE_LOCK.ttlMs })
        .catch(() => undefined);
      if (lock?.ok) await lock[Symbol.asyncDispose]();
      await sleep(1);
    }
    await random.pause(100, 600);
  }
}

const socketsOf = (clients: readonly (Redis | undefined)[]) =>
  clients.flatMap((each) => (each?.stream ? [each.stream] : []));
const mains = (): Redis[] => (client.isCluster ? (client as Cluster).nodes() : [client as Redis]);

process.on('message', ({ what, ms }: Order) => {
  if (what === 'block') {
    const untilMs = nowMs() + ms;
    while (nowMs() < untilMs);
  } else if (what === 'stop') stopped = true;
  else
    for (const socket of socketsOf(what === 'silence main' ? mains() : listeners)) {
      socket.pause();
      setTimeout(() => socket.resume(), ms);
    }
});
process.once('disconnect', () => process.exit(1));

async function main(): Promise<void> {
  const random = (i: number): Random => new Random(given.seed * 1_000 + worker * 100 + i);
  process.send?.('at work');
  await Promise.all([...Array.from({ length: CALLERS }, (_, i) => caller(random(i))), comer(random(99))]);
  await locks.onModuleDestroy();
  closeSync(file);
  process.exit(0);
}
main().catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
