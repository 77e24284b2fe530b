import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../../support/eventually.js';
import { post, stage } from './instances.js';

const PAID = { status: 201, body: { receipt: 'receipt of 7' } };

describe('docs/guides/pay-once.md', () => {
  const on = stage();
  /** Instances that share a provider, which does what `before` and `after` do around each charge. */
  const open = async ({ before = async () => {}, after = async () => {} } = {}) => {
    const { OrdersModule, Provider } = await import('./pay-once/orders.js');
    const charges: string[] = [];
    class SlowProvider extends Provider {
      override async charge(...args: Parameters<InstanceType<typeof Provider>['charge']>) {
        charges.push(args[1].idempotencyKey);
        await before();
        const receipt = await super.charge(...args);
        await after();
        return receipt;
      }
    }
    const provider = new SlowProvider();
    const start = async () =>
      (await on.start(OrdersModule, (builder) => builder.overrideProvider(Provider).useValue(provider))).url;
    return { charges, start };
  };
  /** A wait that the first call comes to, and never another. */
  const firstOnly = () => {
    let go = (): void => {};
    const gate = new Promise<void>((resolve) => (go = resolve));
    let calls = 0;
    return { wait: async () => void (calls++ === 0 && (await gate)), go: () => go() };
  };

  it('charges an order once, of 20 calls on two instances', async () => {
    const { charges, start } = await open({ before: () => sleep(50) });
    const urls = [await start(), await start()];
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, i) => post(`${urls[i % 2]}/orders/7/pay`)),
    );
    for (const answer of answers) expect(answer).toMatchObject(PAID);
    expect(answers.filter(({ headers }) => headers.get('idempotency-replayed') === 'true')).toHaveLength(19);
    expect(charges).toEqual(['order:7']);
    expect(await post(`${urls[0]}/orders/8/pay`)).toMatchObject({ body: { receipt: 'receipt of 8' } });
  });

  it('charges again after a failure, and never under another key of the provider', async () => {
    let fails = 1;
    const { charges, start } = await open({
      before: async () => {
        if (fails-- > 0) throw new Error('the provider is too slow');
      },
    });
    const url = await start();
    expect(await post(`${url}/orders/7/pay`)).toMatchObject({ status: 500 });
    expect(await post(`${url}/orders/7/pay`)).toMatchObject(PAID);
    expect(charges).toEqual(['order:7', 'order:7']);
  });

  it('charges nothing after a call that was cut off, until it is settled with the receipt', async () => {
    const silent = firstOnly();
    const { charges, start } = await open({ after: silent.wait });
    const urls = [await start(), await start()] as const;
    const first = post(`${urls[0]}/orders/7/pay`);
    await eventually(() => expect(charges).toEqual(['order:7']));
    expect(await post(`${urls[1]}/orders/7/decide`)).toMatchObject({ status: 404 });
    const refused = await post(`${urls[1]}/orders/7/pay`); // It waits for 2 s.
    expect(refused).toMatchObject({ status: 409, body: { code: 'OnceInProgress' } });
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(2); // As long as the first has run.

    on.redis.clock.advance(31_000);
    expect(await post(`${urls[1]}/orders/7/pay`)).toMatchObject({
      ...{ status: 409, body: { code: 'OutcomeUnknown' } },
    });
    expect(await post(`${urls[1]}/orders/7/decide`)).toMatchObject({ body: { ok: true } });
    expect(await post(`${urls[1]}/orders/7/pay`)).toMatchObject({ ...PAID, status: 200 });
    expect(charges).toEqual(['order:7']);
    silent.go();
    expect(await first).toMatchObject({ status: 409, body: { code: 'OnceLost' } });
  });

  it('lets the next call pay where the one that was cut off had not', async () => {
    const silent = firstOnly();
    const { charges, start } = await open({ before: silent.wait });
    const urls = [await start(), await start()] as const;
    const first = post(`${urls[0]}/orders/7/pay`);
    await eventually(() => expect(charges).toEqual(['order:7']));
    on.redis.clock.advance(31_000);
    expect(await post(`${urls[1]}/orders/7/decide`)).toMatchObject({ body: { ok: true } });
    expect(await post(`${urls[1]}/orders/7/pay`)).toMatchObject(PAID);
    silent.go();
    expect(await first).toMatchObject({ status: 409, body: { code: 'OnceLost' } });
  });

  it('keeps the result of a call that stood still, if nobody has decided', async () => {
    const silent = firstOnly();
    const { charges, start } = await open({ before: silent.wait });
    const url = await start();
    const first = post(`${url}/orders/7/pay`);
    await eventually(() => expect(charges).toEqual(['order:7']));
    on.redis.clock.advance(31_000);
    expect(await post(`${url}/orders/7/pay`)).toMatchObject({ body: { code: 'OutcomeUnknown' } });
    silent.go();
    expect(await first).toMatchObject(PAID);
    expect(await post(`${url}/orders/7/pay`)).toMatchObject(PAID);
    expect(charges).toEqual(['order:7']);
  });

  it('charges nothing without Redis', async () => {
    const { charges, start } = await open();
    const url = await start();
    await on.redis.kill();
    expect(await post(`${url}/orders/7/pay`)).toMatchObject({ status: 503 });
    expect(charges).toEqual([]);
  });
});
