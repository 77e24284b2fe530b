import 'reflect-metadata';
import { type DynamicModule, Injectable, Logger, Module } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import { Cluster, Redis, type ClusterNode } from 'ioredis';
import { LockService, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { haveOneServer } from '../../lib/redis/same-server.js';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startRedisServer } from '../support/redis-server.js';

@Injectable()
class Orders {
  constructor(readonly locks: LockService) {}
}

/** A module of the app, with a SyncGuardModule of its own. */
function featureWith(options: SyncGuardOptions): {
  feature: DynamicModule;
  orders: new (...args: never[]) => Orders;
} {
  class OrdersHere extends Orders {
    constructor(locks: LockService) {
      super(locks);
    }
  }
  Injectable()(OrdersHere);
  Reflect.defineMetadata('design:paramtypes', [LockService], OrdersHere);
  class Feature {}
  Module({})(Feature);
  const imports = [SyncGuardModule.forRootAsync({ useFactory: () => options, isGlobal: false })];
  return { feature: { module: Feature, imports, providers: [OrdersHere] }, orders: OrdersHere };
}

/** An app with these modules, started, and what it does. It is closed also where it does not start. */
async function started<T>(
  options: readonly SyncGuardOptions[],
  use: (app: TestingModule, orders: (new (...args: never[]) => Orders)[]) => T | Promise<T>,
): Promise<T> {
  const features = options.map(featureWith);
  const imports = features.map(({ feature }) => feature);
  const app = await Test.createTestingModule({ imports }).compile();
  try {
    await app.init();
    return await use(
      app,
      features.map(({ orders }) => orders),
    );
  } finally {
    await app.close();
  }
}

/** The code of the refusal, or who got a lock of one key: who has one prefix and server has one lock. */
const boot = (...options: SyncGuardOptions[]): Promise<string> =>
  started(options, async (app, all) => {
    const held = [];
    for (const orders of all)
      held.push(
        (await app.get(orders, { strict: false }).locks.acquire({ key: 'order:7', ttlMs: 5_000 })).ok,
      );
    return held.join();
  }).catch((error: { code: string }) => error.code);

describe('two modules of an app', () => {
  beforeEach(async () => {
    await freshRedis();
    jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
  });
  afterEach(() => jest.restoreAllMocks());
  const url = (rest = ''): string => `redis://${workerRedis().host}:${workerRedis().port}${rest}`;
  const NESTED = 'KEY_PREFIX_NESTED';

  it('the prefix of one of which is the beginning of the other, on one server, do not boot', async () => {
    const redis = url();
    for (const [one, other] of [
      ['shop', 'shop:billing'],
      ['shop:billing', 'shop'],
      ['shop:', 'shop:billing:'],
      ['shop', 'shop:billing:eu'],
      ['shop:billing', 'shop:billing:eu:'],
      ['syncguard', 'syncguard:x'],
    ] as const)
      expect(await boot({ redis, keyPrefix: one }, { redis, keyPrefix: other })).toBe(NESTED);
    expect(
      await boot({ redis, keyPrefix: 'a' }, { redis, keyPrefix: 'b' }, { redis, keyPrefix: 'b:c' }),
    ).toBe(NESTED);
    expect(await boot({ redis }, { redis, keyPrefix: 'syncguard:b', keyLayout: 'slotted' })).toBe(NESTED);
  });

  it('say both prefixes and what to do', async () => {
    const redis = url();
    const booting = started(
      [
        { redis, keyPrefix: 'shop' },
        { redis, keyPrefix: 'shop:b' },
      ],
      () => {},
    );
    await expect(booting).rejects.toThrow(/^KEY_PREFIX_NESTED: .*"shop".*"shop:b".*"shop-b"/);
  });

  it('with other prefixes, the same prefix twice, another database, or in memory boot', async () => {
    const redis = url();
    expect(await boot({ redis, keyPrefix: 'shop' }, { redis, keyPrefix: 'shop-billing' })).toBe('true,true');
    expect(await boot({ redis, keyPrefix: 'shop' }, { redis, keyPrefix: 'shopping' })).toBe('true,true');
    expect(await boot({ redis, keyPrefix: 'same' }, { redis, keyPrefix: 'same:' })).toBe('true,false');
    expect(await boot({ redis, keyPrefix: 'shop' }, { redis: url('/1'), keyPrefix: 'shop:billing' })).toBe(
      'true,true',
    );
    expect(await boot({ keyPrefix: 'shop' }, { keyPrefix: 'shop:billing' })).toBe('true,true');
    expect(await boot({ keyPrefix: 'shop' }, { redis, keyPrefix: 'shop:billing' })).toBe('true,true');
  });

  it('are found by each way to name the server', async () => {
    const { host, port } = workerRedis();
    const client = workerRedis().client();
    for (const redis of [
      url('/'),
      url('/0'),
      url('?db=0'),
      { host, port },
      { port },
      { port, db: 0 },
      `redis://localhost:${port}`,
      client,
    ]) {
      expect(await boot({ redis: client, keyPrefix: 'shop' }, { redis, keyPrefix: 'shop:billing' })).toBe(
        NESTED,
      );
      expect(await boot({ redis, keyPrefix: 'shop:billing' }, { redis: url(), keyPrefix: 'shop' })).toBe(
        NESTED,
      );
    }
  });

  it('count the keyPrefix of the ioredis client too', async () => {
    const prefixed = workerRedis().client({ keyPrefix: 'shop:' });
    expect(await boot({ redis: url(), keyPrefix: 'shop' }, { redis: prefixed, keyPrefix: 'b' })).toBe(NESTED);
    expect(await boot({ redis: url(), keyPrefix: 'b' }, { redis: prefixed, keyPrefix: 'b:c' })).toBe(
      'true,true',
    );
    expect(await boot({ redis: url(), keyPrefix: 'shop:b' }, { redis: prefixed, keyPrefix: 'b' })).toBe(
      'true,false',
    );
  });

  it('are found on a Cluster, by its nodes and by a client', async () => {
    await using server = await startRedisServer({ cluster: true });
    const nodes = [{ host: server.host, port: server.port }];
    const gone = { host: '127.0.0.1', port: 1 };
    for (const redis of [{ nodes }, { nodes: [gone, ...nodes] }, server.track(new Cluster(nodes))])
      expect(
        await boot(
          { redis: { nodes: [...nodes, gone] }, keyPrefix: 'shop' },
          { redis, keyPrefix: 'shop:billing' },
        ),
      ).toBe(NESTED);
    expect(
      await boot({ redis: { nodes }, keyPrefix: 'shop' }, { redis: { nodes }, keyPrefix: 'shop-b' }),
    ).toBe('true,true');
  });
});

describe('two clients', () => {
  const lazily = { lazyConnect: true };
  const redis = (...args: unknown[]): RedisClient =>
    new (Redis as unknown as new (...given: unknown[]) => RedisClient)(...args, lazily);
  const server = (options: object): RedisClient => redis(options);
  const sentinels = (names: string[], more: object): RedisClient =>
    redis({ sentinels: names.map((host) => ({ host })), name: 'main', ...more });
  const cluster = (...nodes: ClusterNode[]): RedisClient => new Cluster(nodes, lazily);

  it.each<[string, () => RedisClient, () => RedisClient, boolean]>([
    ['no options, and localhost', () => redis(), () => redis('redis://localhost'), true],
    ['a URL with and without a database', () => redis('redis://h/0'), () => redis('redis://h'), true],
    ['a URL and options', () => redis('rediss://u:p@H:6379'), () => server({ host: 'h' }), true],
    ['the database as text', () => redis('redis://h/2'), () => server({ host: 'h', db: 2 }), true],
    ['127.0.0.1 and [::1]', () => redis('redis://127.0.0.1'), () => redis('redis://[::1]:6379/'), true],
    ['one path', () => redis('/run/redis.sock'), () => server({ path: '/run/redis.sock' }), true],
    ['two paths', () => redis('/run/redis.sock'), () => redis('/run/other.sock'), false],
    ['two ports', () => redis('redis://h:1'), () => redis('redis://h:2'), false],
    ['two databases', () => redis('redis://h/1'), () => redis('redis://h/2'), false],
    ['two hosts', () => redis('redis://h'), () => redis('redis://g'), false],
    ['one set of Sentinels', () => sentinels(['a', 'b'], {}), () => sentinels(['c', 'b'], { db: 0 }), true],
    ['two primaries of Sentinels', () => sentinels(['a'], {}), () => sentinels(['a'], { name: 'x' }), false],
    [
      'nodes in another order',
      () => cluster('a:1', 'b:2'),
      () => cluster('redis://b:2', { host: 'a', port: 1 }),
      true,
    ],
    ['a node by its port', () => cluster(7000), () => cluster('localhost:7000', 'b:2'), true],
    ['two Clusters', () => cluster('a:1', 'b:2'), () => cluster('c:1', 'd:2'), false],
  ])('%s', (_, one, other, areOne) => {
    const clients = [one(), other()] as const;
    expect(haveOneServer(...clients)).toBe(areOne);
    expect(haveOneServer(clients[1], clients[0])).toBe(areOne);
    for (const client of clients) client.disconnect?.();
  });

  it("of a user's own that have only eval are one where they are the same object", () => {
    const mock = { eval: async () => 1 };
    expect(haveOneServer(mock, mock)).toBe(true);
    expect(haveOneServer(mock, { ...mock })).toBe(false);
  });
});
