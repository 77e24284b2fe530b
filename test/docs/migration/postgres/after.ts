// after.ts
import { Controller, Inject, Injectable, Param, Post, Provider } from '@nestjs/common';
import { Lock, type LockContext, minutes, RateLimit, SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { Pool } from 'pg';

export const schema = `
  CREATE TABLE IF NOT EXISTS orders
    (id text PRIMARY KEY, paid boolean NOT NULL DEFAULT false, last_fence text NOT NULL DEFAULT '')`;

@Injectable()
@Controller('orders')
export class OrdersController {
  constructor(@Inject(Pool) private readonly db: Pool) {}

  @Post(':id/pay')
  @RateLimit({ limit: 3, windowMs: minutes(1), keyBy: 'params.id' })
  @WithLock('order:{0}')
  async pay(@Param('id') id: string, @Lock() lock?: LockContext) {
    const { rows } = await this.db.query<{ paid: boolean }>('SELECT paid FROM orders WHERE id = $1', [id]);
    const charged = !rows[0]!.paid;
    if (charged) await new Promise((resolve) => setTimeout(resolve, 100)); // holds no connection
    // A holder that stood still for longer than its lock writes nothing.
    await this.db.query('UPDATE orders SET paid = true, last_fence = $2 WHERE id = $1 AND last_fence < $2', [
      id,
      lock!.fence,
    ]);
    return { charged };
  }
}

export const imports = [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })];
export const databaseOf = (pool: Pool): Provider => ({ provide: Pool, useValue: pool });
