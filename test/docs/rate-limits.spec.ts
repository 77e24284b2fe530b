import type { INestApplication } from '@nestjs/common';
import { SyncGuardModule } from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { DoorController } from './rate-limits/tries-left.js';

let app: INestApplication;
afterEach(() => closeApp(app));

it.each(['express', 'fastify'] as const)(
  'says how many tries are left, then why none is, on %s',
  async (adapter) => {
    const started = await listen(adapter, {
      imports: [SyncGuardModule.forRoot()],
      controllers: [DoorController],
    });
    ({ app } = started);
    const open = (pin: string) =>
      fetch(`${started.url}/door`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ pin }),
      });
    expect(await (await open('1234')).text()).toBe('open');
    for (const left of [3, 2, 1])
      expect(await (await open('0')).json()).toMatchObject({
        message: `Wrong. You have ${left} tries left.`,
      });
    const locked = await open('0');
    expect(locked.headers.get('content-type')).toMatch(/^application\/problem\+json/);
    expect(await locked.json()).toMatchObject({ title: 'Locked', status: 429, retryAfterSecs: 900 });
  },
);
