// before.ts
import { Controller, HttpException, Inject, Injectable, Param, Post, Provider } from '@nestjs/common';
import { Pool } from 'pg';

export const schema = `
  CREATE TABLE IF NOT EXISTS hits (key text PRIMARY KEY, n int NOT NULL, ends timestamptz NOT NULL);
  CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, paid boolean NOT NULL DEFAULT false)`;

@Injectable()
@Controller('orders')
export class OrdersController {
  constructor(@Inject(Pool) private readonly db: Pool) {}

  @Post(':id/pay')
  async pay(@Param('id') id: string) {
    const { rows } = await this.db.query<{ n: number }>(
      `INSERT INTO hits VALUES ($1, 1, now() + interval '1 minute')
       ON CONFLICT (key) DO UPDATE SET
         n = CASE WHEN hits.ends < now() THEN 1 ELSE hits.n + 1 END,
         ends = CASE WHEN hits.ends < now() THEN now() + interval '1 minute' ELSE hits.ends END
       RETURNING n`,
      [`pay:${id}`],
    );
    if (rows[0]!.n > 3) throw new HttpException('Too many.', 429);

    const client = await this.db.connect(); // of a pool of ten
    try {
      await client.query('BEGIN');
      const { rows } = await client.query<{ paid: boolean }>(
        'SELECT paid FROM orders WHERE id = $1 FOR UPDATE',
        [id],
      );
      const charged = !rows[0]!.paid;
      if (charged) await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
      await client.query('UPDATE orders SET paid = true WHERE id = $1', [id]);
      await client.query('COMMIT');
      return { charged };
    } finally {
      client.release();
    }
  }
}

export const imports: never[] = [];
export const databaseOf = (pool: Pool): Provider => ({ provide: Pool, useValue: pool });
