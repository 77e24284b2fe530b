import { setTimeout as sleep } from 'node:timers/promises';
import { post, stage } from './instances.js';

describe('docs/guides/pay-once.md', () => {
  const on = stage();
  const open = async () => {
    const { OrdersModule, Shop } = await import('./pay-once/orders.js');
    class SlowShop extends Shop {
      override async charge(...args: Parameters<InstanceType<typeof Shop>['charge']>) {
        await sleep(50);
        return super.charge(...args);
      }
    }
    const shop = new SlowShop();
    const start = () => on.start(OrdersModule, (builder) => builder.overrideProvider(Shop).useValue(shop));
    return { shop, start };
  };

  it('charges an order once, of 20 calls on two instances', async () => {
    const { shop, start } = await open();
    const urls = [(await start()).url, (await start()).url];
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, i) => post(`${urls[i % 2]}/orders/7/pay`)),
    );
    expect(answers.map(({ status }) => status)).toEqual(Array(20).fill(201));
    const bodies = answers.map(({ body }) => body as { receipt: string; charged: boolean });
    expect(bodies.filter(({ charged }) => charged)).toEqual([{ receipt: 'receipt of 7', charged: true }]);
    expect(new Set(bodies.map(({ receipt }) => receipt))).toEqual(new Set(['receipt of 7']));
    expect(shop.charges).toEqual(['order:7']);
  });

  it('answers 423 to who waits in vain, and names the order when it charges again after a crash', async () => {
    const { shop, start } = await open();
    const { url } = await start();
    const client = on.redis.client();
    const record = { lockId: 'A'.repeat(22), expiresAtMs: Date.now() + 30_000, acquiredAtMs: Date.now() };
    const fields = { ...record, key: 'order:7', fence: '000000000000001' };
    await client.set('syncguard:order:7', JSON.stringify(fields), 'PX', 30_000); // of one that died
    shop.charges.push('order:7');

    const refused = await post(`${url}/orders/7/pay`);
    expect(refused).toMatchObject({ status: 423, body: { code: 'AcquisitionTimeout' } });
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(10);

    on.redis.clock.advance(31_000);
    expect(await post(`${url}/orders/7/pay`)).toMatchObject({ status: 201, body: { charged: true } });
    expect(new Set(shop.charges)).toEqual(new Set(['order:7']));
  });

  it('charges nothing without Redis', async () => {
    const { shop, start } = await open();
    const { url } = await start();
    await on.redis.kill();
    expect(await post(`${url}/orders/7/pay`)).toMatchObject({ status: 503 });
    expect(shop.charges).toEqual([]);
  });
});
