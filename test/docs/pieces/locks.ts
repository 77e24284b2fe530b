import { Redis } from 'ioredis';
import { lockKey, type LockService, WithLock } from 'nestjs-syncguard';
import { createRedisBackend } from 'nestjs-syncguard/core';

export class Accounts {
  constructor(private readonly locks: LockService) {}

  @WithLock('user:{0}') // of 'ann@x.org' it is the lock user:ann@x.org
  async rename(email: string) {
    return email;
  }

  async isRenamed(locks: LockService, email: string) {
    await locks.isLocked({ key: lockKey('user:{0}', email) });
  }

  async move(locks: LockService, transfer: (from: string, to: string, fence: string) => Promise<void>) {
    const [from, to] = ['ann', 'bob'];
    await locks.lock(({ fence }) => transfer(from, to, fence), {
      keys: [`account:${from}`, `account:${to}`],
    });
  }

  @WithLock((from: string, to: string) => [`account:${from}`, `account:${to}`])
  async transfer(from: string, to: string) {
    return [from, to];
  }
}

export async function withoutNest() {
  const locks = createRedisBackend(new Redis()); // or createMemoryBackend()
  const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
  if (lock.ok) await lock.release();
}
