import 'reflect-metadata';
import { Test } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import {
  AbuseLimiterService,
  BudgetService,
  LockService,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
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
