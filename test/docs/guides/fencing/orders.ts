// orders.ts
import { ConflictException, Injectable } from '@nestjs/common';
import { FenceGuard, Lock, type LockContext, WithLock } from 'nestjs-syncguard';
import { shipOnRedis } from './ship.js';

@Injectable()
export class Orders {
  constructor(private readonly fences: FenceGuard) {} // Of SyncGuardModule.

  @WithLock('order:{0}')
  async ship(id: string, @Lock() lock?: LockContext): Promise<void> {
    if (!(await shipOnRedis(this.fences, id, 'shipped', lock!))) throw new ConflictException();
  }
}
