import { Injectable } from '@nestjs/common';
import { Cron } from '@nestjs/schedule';
import { hours, LockService, minutes, seconds, WithLock } from 'nestjs-syncguard';

interface Order {
  id: string;
}

const pages = ['1', '2'];

@Injectable()
export class Jobs {
  readonly done: string[] = [];

  constructor(private readonly locks: LockService) {}

  @WithLock((order: Order) => `order:${order.id}`, { ttlMs: minutes(1), timeoutMs: 0 })
  async ship(order: Order) {
    this.done.push(`ship ${order.id}`);
  }

  async importAll() {
    await this.locks.lock(
      async (lock) => {
        for (const page of pages) {
          lock.assertHeld(); // throws at once if the lock was lost: no I/O
          await this.import(page, lock.fence);
        }
      },
      { key: 'import', ttlMs: seconds(30) },
    );
  }

  async report() {
    const lock = await this.locks.acquire({ key: 'report', ttlMs: minutes(1) });
    if (!lock.ok) return 'somebody is at it';
    await using _held = lock; // released at the end of the block
    return this.done.join(', ');
  }

  // `minHoldMs`: also on machines whose clocks differ. `maxHoldMs`: a job that hangs loses the lock.
  @Cron('0 3 * * *')
  @WithLock('nightly', { onContention: 'skip', minHoldMs: minutes(1), maxHoldMs: hours(1) })
  async nightly() {
    await this.importAll();
  }

  private async import(page: string, fence: string) {
    this.done.push(`import ${page} ${fence.length}`);
  }
}
