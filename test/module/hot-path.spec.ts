import 'reflect-metadata';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { Test } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import {
  AbuseLimiterService,
  type AcquireResult,
  BudgetService,
  LockService,
  OnceService,
  RateLimitGuard,
  SecretService,
  SyncGuardModule,
  type SyncGuardOptions,
  WithLock,
} from 'nestjs-syncguard';
import { createHook } from 'node:async_hooks';
import { granted } from '../lock/lock.contract.js';
import { freshRedis } from '../support/redis.js';

interface Sent {
  readonly commands: number;
  readonly bytes: number;
}

interface Command {
  readonly name: string;
  toWritable(socket: unknown): string | Buffer;
}

/** Counts what a client sends while a function runs. */
async function sentBy(client: Redis, run: () => Promise<unknown>): Promise<Sent> {
  const send = client.sendCommand.bind(client);
  let [commands, bytes] = [0, 0];
  client.sendCommand = (command: Command, ...rest: []) => {
    commands++;
    bytes += Buffer.byteLength(command.toWritable(client.stream));
    return send(command as never, ...rest);
  };
  try {
    await run();
    return { commands, bytes };
  } finally {
    client.sendCommand = send;
  }
}

// What operators see and count is looked up when they ask. So these numbers are the same with and without it, and as they
// were before there was any of it.
describe.each<[string, SyncGuardOptions]>([
  ['nothing for operators', {}],
  ['all that operators can have', { operations: true, telemetry: { onEvent: () => {} } }],
])('what the busiest calls send, with %s', (_, options) => {
  it('is one command each, and not a byte more than before', async () => {
    const client = (await freshRedis()).client();
    const module = SyncGuardModule.forRoot({
      ...{ redis: client, commandTimeoutMs: 10_000, ...options },
      limits: { api: { limit: 100, windowMs: 60_000 } },
      budget: { limits: [{ scope: 'org', period: 'lifetime', limit: 1_000 }], reaper: false },
    });
    const app = await Test.createTestingModule({ imports: [module] }).compile();
    await app.init();
    const [locks, limiter, budgets] = [
      ...[app.get(LockService), app.get(AbuseLimiterService), app.get(BudgetService)],
    ] as const;
    const pair = async (): Promise<void> => {
      const lock = await locks.acquire({ key: 'order:1', ttlMs: 30_000 });
      if (lock.ok) await lock.release();
    };
    const check = () => limiter.check('203.0.113.7', 'api');
    const reserve = (id: string) => budgets.reserve({ scopes: ['org'], amount: 5, id, ttlMs: 30_000 });
    await Promise.all([pair(), check(), reserve('id-0')]); // The server learns the scripts.
    expect({
      pair: await sentBy(client, pair),
      check: await sentBy(client, check),
      reserve: await sentBy(client, () => reserve('id-1')),
    }).toStrictEqual({
      pair: { commands: 2, bytes: 610 },
      check: { commands: 1, bytes: 258 },
      reserve: { commands: 1, bytes: 448 },
    });
    await app.close();
  });
});

class Orders {
  @WithLock((id: number) => `order:${id}`)
  pay(id: number): Promise<number> {
    return Promise.resolve(id);
  }
}

/** How many promises a call makes, those of ioredis and of Node's `await` among them. */
async function promisesOf<Ready>(
  call: (i: number, ready: Ready) => unknown,
  before: (i: number) => Promise<Ready> | Ready = () => undefined as Ready,
): Promise<number> {
  const made: number[] = [];
  for (let i = 0; i < 20; i++) {
    const ready = await before(i);
    let count = 0;
    const hook = createHook({ init: (_, type) => void (type === 'PROMISE' && count++) }).enable();
    await call(i, ready);
    hook.disable();
    made.push(count);
  }
  return Math.min(...made); // A timer of the process may make some too.
}

// A bare EVALSHA of ioredis makes 3. Each one is an object, and work for the garbage collector.
it('the busiest calls make no more promises than they need', async () => {
  const client = (await freshRedis()).client();
  const module = SyncGuardModule.forRoot({
    ...{ redis: client, commandTimeoutMs: 10_000 },
    limits: { default: { keyBy: 'headers.x-client', limit: 100, windowMs: 60_000 } },
    budget: { limits: [{ scope: 'org', period: 'lifetime', limit: 1_000 }], reaper: false },
  });
  const app = await Test.createTestingModule({
    imports: [module],
    providers: [Orders, RateLimitGuard],
  }).compile();
  await app.init();
  const [locks, limiter, guard] = [
    ...[app.get(LockService), app.get(AbuseLimiterService), app.get(RateLimitGuard)],
  ] as const;
  const [budgets, secrets, once] = [app.get(BudgetService), app.get(SecretService), app.get(OnceService)];
  const acquire = (i: number) => locks.acquire({ key: `order:${i}`, ttlMs: 30_000 });
  const request = { method: 'GET', url: '/', headers: { 'x-client': 'ann' } };
  const context = (): ExecutionContextHost =>
    new ExecutionContextHost([{ ...request }, {}], Orders, Orders.prototype.pay);
  const reserve = (i: number) => budgets.reserve({ scopes: ['org'], amount: 1, id: `hold-${i}` });
  const create = () => secrets.create({ payload: 'sealed', views: 1, ttlMs: 30_000 });
  const answered = (i: number) => once.run(() => i, { key: `call:${i}` });
  const made = {
    acquire: await promisesOf(acquire),
    release: await promisesOf<AcquireResult>(
      (_, lock) => granted(lock).release(),
      (i) => acquire(100 + i),
    ),
    lock: await promisesOf((i) => locks.lock(() => undefined, { key: `job:${i}` })),
    withLock: await promisesOf((i) => app.get(Orders).pay(1_000 + i)),
    check: await promisesOf(() => limiter.check('203.0.113.7', 'default')),
    guard: await promisesOf((_, call) => guard.canActivate(call), context),
    reserve: await promisesOf(reserve),
    finalize: await promisesOf((i) => budgets.finalize({ id: `hold-${i}` }, 1)),
    charge: await promisesOf((i) => budgets.charge({ scopes: ['org'], amount: 1, id: `charge-${i}` })),
    create: await promisesOf(create),
    view: await promisesOf((_, { id }) => secrets.view(id), create),
    run: await promisesOf(answered),
    replay: await promisesOf(answered),
  };
  const most: Record<keyof typeof made, number> = {
    ...{ acquire: 7, release: 7, lock: 18, withLock: 24, check: 10, guard: 12 },
    ...{ reserve: 14, finalize: 12, charge: 14, create: 8, view: 8, run: 20, replay: 11 },
  };
  expect(
    Object.entries(made).filter(([call, promises]) => promises > most[call as keyof typeof made]),
  ).toStrictEqual([]);
  await app.close();
});
