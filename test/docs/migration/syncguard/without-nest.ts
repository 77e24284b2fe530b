// without-nest.ts
import { type Redis } from 'ioredis';
import { createRedisBackend } from 'nestjs-syncguard/core';
import { expectFence, owns } from 'nestjs-syncguard/compat';

export async function report(redis: Redis): Promise<string> {
  const backend = createRedisBackend(redis);
  const lock = await backend.acquire({ key: 'report', ttlMs: 30_000 });
  if (!lock.ok) return 'somebody is at it';
  expectFence(lock);
  await backend.extend({ lockId: lock.lockId, ttlMs: 60_000 });
  const isOurs = await owns(backend, lock.lockId);
  await backend.release({ lockId: lock.lockId });
  return `${isOurs} ${lock.fence}`;
}
