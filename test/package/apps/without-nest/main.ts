// A program without Nest, on the entries that promise to need none: see ../../package.spec.ts.
import { Redis } from 'ioredis';
import { createRequire } from 'node:module';
import {
  createMemoryBackend,
  createRedisBackend,
  LOCK_SCRIPTS,
  type LockBackend,
  LockError,
  type SyncGuardEvent,
  withTelemetry,
} from 'nestjs-syncguard/core';
import {
  ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT,
  expectFence,
  owns,
  parseIncrementResult,
} from 'nestjs-syncguard/compat';

const KEY = 'package:without-nest';
const require = createRequire(import.meta.url);

async function tryLock(
  locks: LockBackend,
): Promise<readonly [fence: string, contended: boolean, owned: boolean]> {
  const lock = await locks.acquire({ key: KEY, ttlMs: 30_000 });
  expectFence(lock);
  const { ok } = await locks.acquire({ key: KEY, ttlMs: 30_000 });
  const owned = await owns(locks, lock.lockId);
  await lock.release();
  return [lock.fence, !ok, owned];
}

const client = new Redis(process.env.REDIS_URL ?? '');
const events: SyncGuardEvent[] = [];
const redis = withTelemetry(createRedisBackend(client), { onEvent: (event) => void events.push(event) });
const count = parseIncrementResult(
  await client.eval(ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT, 1, `${KEY}:count`, 1, 60),
);
const invalid = await redis.acquire({ key: '', ttlMs: 1 }).catch((error: unknown) => error);
const core = require('nestjs-syncguard/core') as typeof import('nestjs-syncguard/core');
const compat = require('nestjs-syncguard/compat') as typeof import('nestjs-syncguard/compat');

console.log(
  JSON.stringify({
    memory: await tryLock(createMemoryBackend()),
    redis: await tryLock(redis),
    events: events.map(({ type }) => type),
    count,
    error: invalid instanceof LockError && invalid.code,
    scripts: LOCK_SCRIPTS.every(({ name, lua }) => /^(lock-|publish$)/.test(name) && lua.includes('redis.')),
    oneCopy: core.LockError === LockError && compat.owns === owns,
  }),
);
await client.quit();
