import type { DynamicModule, INestApplication, Provider, Type } from '@nestjs/common';
import type { Pool } from 'pg';
import { listen } from '../../support/adapters.js';
import { closeApp } from '../../support/close-app.js';
import { type PostgresServer, startPostgres } from '../../support/postgres-server.js';
import { freshRedis } from '../../support/redis.js';

interface Example {
  readonly schema: string;
  readonly imports: DynamicModule[];
  readonly OrdersController: Type;
  databaseOf(pool: Pool): Provider;
}

let postgres: PostgresServer;
let app: INestApplication;
beforeAll(async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
  postgres = await startPostgres();
}, 60_000);
afterEach(() => closeApp(app));
afterAll(async () => {
  delete process.env.REDIS_URL;
  await postgres.stop();
});

it.each<[string, () => Promise<Example>]>([
  ['before', () => import('./postgres/before.js')],
  ['after', () => import('./postgres/after.js')],
])('the app answers the same requests the same way, %s', async (_name, load) => {
  const { schema, imports, OrdersController, databaseOf } = await load();
  const db = postgres.pool();
  await db.query('DROP TABLE IF EXISTS orders');
  await db.query(schema);
  await db.query(`INSERT INTO orders (id) VALUES ('7'), ('8')`);
  const started = await listen('express', {
    imports,
    controllers: [OrdersController],
    providers: [databaseOf(db)],
  });
  ({ app } = started);
  const pay = (id: string) => fetch(`${started.url}/orders/${id}/pay`, { method: 'POST' });
  const both = await Promise.all([pay('7'), pay('7')]);
  expect(await Promise.all(both.map((each) => each.json()))).toEqual(
    expect.arrayContaining([{ charged: true }, { charged: false }]),
  );
  expect(await (await pay('7')).json()).toEqual({ charged: false });
  expect((await pay('7')).status).toBe(429);
  expect(await (await pay('8')).json()).toEqual({ charged: true });
});
