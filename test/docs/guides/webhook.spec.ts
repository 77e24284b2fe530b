import { createHmac } from 'node:crypto';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { currentOnce } from 'nestjs-syncguard';
import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';

const SECRET = 'whsec_of_a_test';

const eventOf = (id: string, more = {}) =>
  JSON.stringify({
    ...{ id, object: 'event', api_version: '2024-06-20', type: 'checkout.session.completed' },
    ...{ data: { object: { id: 'cs_1', object: 'checkout.session', amount_total: 1_999 } } },
    ...{ livemode: false, pending_webhooks: 1, request: { id: null, idempotency_key: null }, ...more },
  });

/** Delivers an event as Stripe does: each delivery is signed anew. */
async function deliver(url: string, body: string, { signed = body, time = Date.now() / 1000 } = {}) {
  const t = Math.floor(time);
  const v1 = createHmac('sha256', SECRET).update(`${t}.${signed}`).digest('hex');
  const headers = {
    'content-type': 'application/json; charset=utf-8',
    'stripe-signature': `t=${t},v1=${v1},v0=${'0'.repeat(64)}`,
  };
  const response = await fetch(`${url}/webhooks/stripe`, { method: 'POST', headers, body });
  return { status: response.status, headers: response.headers, body: (await response.json()) as object };
}

describe('docs/guides/webhook.md', () => {
  const on = stage({ STRIPE_WEBHOOK_SECRET: SECRET });
  const apps: INestApplication[] = [];
  afterEach(async () => void (await Promise.all(apps.splice(0).map((app) => app.close()))));

  /** What is shipped, and by which attempt. `ship()` does what `before` does first. */
  const open = async (before: () => Promise<void> = async () => {}) => {
    const { WebhooksModule, Shipping } = await import('./webhook/webhooks.js');
    const attempts: unknown[] = [];
    class OneShipping extends Shipping {
      override async ship(checkout: string) {
        attempts.push(currentOnce()?.attempt);
        await before();
        return super.ship(checkout);
      }
    }
    const shipping = new OneShipping();
    const start = async (): Promise<string> => {
      const module = Test.createTestingModule({ imports: [WebhooksModule] });
      const app = (
        await module.overrideProvider(Shipping).useValue(shipping).compile()
      ).createNestApplication({ rawBody: true, forceCloseConnections: true });
      apps.push(app);
      await app.listen(0, '127.0.0.1');
      return app.getUrl();
    };
    return { start, attempts, shipped: shipping.shipped };
  };

  it('ships once, of ten deliveries at once on two instances, and a sender that retries on 409 gets 200', async () => {
    let go = (): void => {};
    const gate = new Promise<void>((resolve) => (go = resolve));
    const { start, shipped } = await open(() => gate);
    const urls = [await start(), await start()];
    const until200 = (url: string): Promise<unknown> =>
      eventually(async () => {
        const answer = await deliver(url, eventOf('evt_1'));
        if (answer.status === 409) {
          expect(answer.body).toMatchObject({ code: 'OnceInProgress' });
          expect(Number(answer.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
          go();
        }
        expect(answer).toMatchObject({ status: 200, body: { received: true } });
      });
    await Promise.all(Array.from({ length: 10 }, (_, i) => until200(urls[i % 2] as string)));
    expect(shipped).toEqual(['cs_1']);

    const again = await deliver(urls[0] as string, eventOf('evt_1', { pending_webhooks: 0 }));
    expect([again.status, again.headers.get('idempotency-replayed')]).toEqual([200, 'true']);
    expect(await deliver(urls[0] as string, eventOf('evt_1', { type: 'x' }))).toMatchObject({ status: 422 });
    expect(await deliver(urls[1] as string, eventOf('evt_2'))).toMatchObject({ status: 200 });
    expect(shipped).toEqual(['cs_1', 'cs_1']);
  });

  it('neither runs nor replays what is not signed, is signed otherwise or too old', async () => {
    const { start, shipped } = await open();
    const url = await start();
    const refusals = async () => [
      (await deliver(url, eventOf('evt_1'), { signed: eventOf('evt_2') })).status,
      (await deliver(url, eventOf('evt_1'), { time: Date.now() / 1000 - 301 })).status,
      (await fetch(`${url}/webhooks/stripe`, { method: 'POST' })).status,
    ];
    expect(await refusals()).toEqual([403, 403, 403]);
    expect(await deliver(url, eventOf('evt_1'))).toMatchObject({ status: 200 });
    expect(await refusals()).toEqual([403, 403, 403]);
    expect(shipped).toEqual(['cs_1']);
  });

  it('runs again what has thrown, as attempt 2', async () => {
    let fails = 1;
    const { start, shipped, attempts } = await open(async () => {
      if (fails-- > 0) throw new Error('the database is away');
    });
    const url = await start();
    expect((await deliver(url, eventOf('evt_1'))).status).toBe(500);
    expect((await deliver(url, eventOf('evt_1'))).status).toBe(200);
    expect([shipped, attempts]).toEqual([['cs_1'], [1, 2]]);
  });

  it('runs again after the lease of a process that is silent', async () => {
    let go = (): void => {};
    const silent = new Promise<void>((resolve) => (go = resolve));
    let runs = 0;
    const { start, attempts } = await open(async () => {
      if (runs++ === 0) await silent;
    });
    const urls = [await start(), await start()] as const;
    const first = deliver(urls[0], eventOf('evt_1'));
    await eventually(() => expect(attempts).toEqual([1]));
    expect((await deliver(urls[1], eventOf('evt_1'))).status).toBe(409);
    on.redis.clock.advance(31_000);
    expect((await deliver(urls[1], eventOf('evt_1'))).status).toBe(200);
    expect(attempts).toEqual([1, 2]);
    go();
    expect(await first).toMatchObject({ status: 409, body: { code: 'OnceLost' } });
  });

  it('runs nothing without Redis', async () => {
    const { start, shipped } = await open();
    const url = await start();
    await on.redis.kill();
    expect((await deliver(url, eventOf('evt_1'))).status).toBe(503);
    expect(shipped).toEqual([]);
  });
});
