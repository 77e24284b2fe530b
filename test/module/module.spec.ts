import 'reflect-metadata';
import { Injectable, Logger, Module } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Redis } from 'ioredis';
import {
  createRedisBackend,
  LockService,
  ScriptLoader,
  SyncGuardConfigError,
  SyncGuardHealthIndicator,
  SyncGuardModule,
  type SyncGuardOptions,
  type SyncGuardOptionsFactory,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { gate } from '../support/gate.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startRedisServer } from '../support/redis-server.js';
import { stopwatch } from '../support/stopwatch.js';
import { listen } from '../support/adapters.js';

const boot = (...imports: unknown[]) => Test.createTestingModule({ imports: imports as never[] }).compile();

async function warningsOf<T>(run: () => Promise<T>): Promise<{ result: T; warnings: string[] }> {
  const spy = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
  try {
    const result = await run();
    return { result, warnings: spy.mock.calls.map(([message]) => String(message)) };
  } finally {
    spy.mockRestore();
  }
}

describe('SyncGuardModule', () => {
  beforeEach(freshRedis);

  describe('runs on', () => {
    const options: [string, () => SyncGuardOptions | undefined, 'memory' | 'redis'][] = [
      ['memory, with no argument', () => undefined, 'memory'],
      ['a URL', () => ({ redis: workerRedis().url }), 'redis'],
      ['ioredis options', () => ({ redis: { host: '127.0.0.1', port: workerRedis().port, db: 2 } }), 'redis'],
      ['a client', () => ({ redis: workerRedis().client() }), 'redis'],
      ['a lazy client', () => ({ redis: workerRedis().client({ lazyConnect: true }) }), 'redis'],
    ];
    it.each(options)('%s', async (_, given, backend) => {
      const module = await boot(SyncGuardModule.forRoot(given()));
      const locks = module.get(LockService);
      expect(locks.capabilities.backend).toBe(backend);
      expect(await locks.lock(({ fence }) => fence, { key: 'order:1' })).toMatch(/^\d{15}$/);
      expect(await module.get(SyncGuardHealthIndicator).isHealthy()).toStrictEqual({
        syncguard: { status: 'up', backend },
      });
      expect(module.get(ScriptLoader).scripts.length).toBeGreaterThan(0);
      await module.close();
    });

    it('a Cluster, by its nodes and by a client, with slotted keys', async () => {
      await using server = await startRedisServer({ cluster: true });
      const nodes = [{ host: server.host, port: server.port }];
      for (const redis of [{ nodes }, server.cluster()]) {
        const module = await boot(SyncGuardModule.forRoot({ redis }));
        await module.get(LockService).lock(() => 1, { key: 'order:1' });
        await module.close();
      }
      const [key] = await server.client().keys('*');
      expect(key).toMatch(/^syncguard:\{[\w-]{3}\}:fence:/);
    });
  });

  describe('forRootAsync', () => {
    @Injectable()
    class Options implements SyncGuardOptionsFactory {
      createSyncGuardOptions(): SyncGuardOptions {
        return { redis: workerRedis().url, keyPrefix: 'async' };
      }
    }
    @Module({ providers: [Options], exports: [Options] })
    class OptionsModule {}

    it.each([
      [
        'useFactory',
        {
          imports: [OptionsModule],
          inject: [Options],
          useFactory: (o: Options) => o.createSyncGuardOptions(),
        },
      ],
      ['useClass', { useClass: Options }],
      ['useExisting', { imports: [OptionsModule], useExisting: Options }],
    ])('%s', async (_, options) => {
      const module = await boot(SyncGuardModule.forRootAsync(options));
      await module.get(LockService).lock(() => 1, { key: 'order:1' });
      expect(await workerRedis().client().keys('*')).toStrictEqual(['async:fence:async:order:1']);
      await module.close();
    });

    it('fails the boot on a malformed option', async () => {
      const booting = boot(SyncGuardModule.forRootAsync({ useFactory: () => ({ commandTimeoutMs: 0 }) }));
      await expect(booting).rejects.toThrow(
        /commandTimeoutMs must be an integer from 1 to 600000, got 0 \(number\)/,
      );
    });
  });

  describe('isGlobal', () => {
    @Injectable()
    class Job {
      @WithLock('job')
      async run(): Promise<string> {
        return 'ran';
      }
    }
    @Module({ providers: [Job] })
    class Feature {}

    it('is true by default, on forRoot and forRootAsync', async () => {
      for (const root of [
        SyncGuardModule.forRoot(),
        SyncGuardModule.forRootAsync({ useFactory: () => ({}) }),
      ]) {
        const module = await boot(root, Feature);
        expect(await module.get(Job, { strict: false }).run()).toBe('ran');
        await module.close();
      }
    });

    it('false keeps it to the modules that import it, and Nest refuses to boot the others', async () => {
      const message = /LockService \(is SyncGuardModule.forRoot\(\) imported\?\)/;
      await expect(boot(SyncGuardModule.forRoot({ isGlobal: false }), Feature)).rejects.toThrow(message);
      await expect(boot(Feature)).rejects.toThrow(message);
    });
  });

  it('imported twice it refuses to boot: two sets of locks would not exclude each other', async () => {
    @Module({ imports: [SyncGuardModule.forRoot({ keyPrefix: 'other' })] })
    class Second {}
    const module = await boot(SyncGuardModule.forRoot(), Second);
    await expect(module.init()).rejects.toThrow(/imported 2 times/);
    const apart = await boot(SyncGuardModule.forRoot({ isGlobal: false }), Second);
    await apart.init();
    await apart.close();
  });

  it.each([
    ['4 and later', { eval: () => {}, evalSha: () => {}, sendCommand: () => {}, isReady: false }],
    ['4 and later, of a Cluster', { eval: () => {}, evalSha: () => {}, sendCommand: () => {}, slots: [] }],
    ['3', { eval: () => {}, evalsha: () => {}, send_command: () => {} }],
  ])('refuses a client of the package `redis` %s by name', (_, client) => {
    const boot = () => SyncGuardModule.forRoot({ redis: client as never });
    expect(boot).toThrow(/redis must not be a client of the package `redis` \(node-redis\)\. .*ioredis/);
    expect(() => createRedisBackend(client as never)).toThrow(/node-redis/);
  });

  describe('malformed options', () => {
    it.each<[string, unknown, RegExp]>([
      ['an unknown one', { prefix: 'x' }, /options\.prefix is not an option.*keyPrefix/],
      ['an unknown one in a group', { lock: { ttl: 5 } }, /lock\.ttl is not an option/],
      ['null', null, /options must be an object, got null/],
      ['no object', 'redis://x', /options must be an object/],
      [
        'a TTL of 0',
        { lock: { ttlMs: 0 } },
        /lock\.ttlMs must be an integer from 1 to 2147483647, got 0 \(number\)/,
      ],
      ['a TTL as text', { lock: { ttlMs: '5s' } }, /lock\.ttlMs must be .* got "5s" \(string\)/],
      ['a group that is none', { lock: 5 }, /lock must be an object, got 5/],
      ['a prefix with a slash', { keyPrefix: 'a/b' }, /keyPrefix may not contain/],
      ['a prefix with a brace', { keyPrefix: 'a{b}' }, /keyPrefix may not contain/],
      ['a prefix that ends in id', { keyPrefix: 'app:id' }, /"id" as its last part/],
      ['a prefix that has a part fence', { keyPrefix: 'fence:x' }, /a part "fence"/],
      ['an empty prefix', { keyPrefix: '' }, /non-empty string, got an empty string/],
      ['a layout that is none', { keyLayout: 'flat' }, /"spec" or "slotted", got "flat"/],
      [
        'the spec layout on a Cluster',
        { keyLayout: 'spec', redis: { nodes: [{ port: 1 }] } },
        /"slotted" on a Redis Cluster/,
      ],
      ['a number as redis', { redis: 6379 }, /redis must be a URL/],
      ['a port out of range', { redis: { port: 99_999 } }, /redis\.port/],
      ['drainMs of -1', { shutdown: { drainMs: -1 } }, /shutdown\.drainMs/],
    ])('%s: forRoot throws a SyncGuardConfigError that names it', (_, options, message) => {
      const root = (): unknown => SyncGuardModule.forRoot(options as never);
      expect(root).toThrow(SyncGuardConfigError);
      expect(root).toThrow(message);
    });
  });

  describe('without a Redis that works', () => {
    it('boots within 2.5 s with a warning that names the cause; calls fail, health is down, until it comes', async () => {
      await using server = await startRedisServer();
      await server.kill();
      const elapsedMs = stopwatch();
      const { result: module, warnings } = await warningsOf(() =>
        boot(SyncGuardModule.forRoot({ redis: server.url })),
      );
      expect(elapsedMs()).toBeLessThan(5_000);
      expect(warnings.join()).toMatch(/starts without Redis \(ServiceUnavailable\).*ECONNREFUSED/);
      const locks = module.get(LockService);
      await expect(locks.lock(() => 1, { key: 'order:1' })).rejects.toMatchObject({
        code: 'ServiceUnavailable',
      });
      const health = module.get(SyncGuardHealthIndicator);
      expect(await health.isHealthy('locks')).toMatchObject({
        locks: { status: 'down', backend: 'redis', code: 'ServiceUnavailable' },
      });
      await server.restart();
      await eventually(async () =>
        expect(await health.isHealthy()).toMatchObject({ syncguard: { status: 'up' } }),
      );
      expect(await locks.lock(() => 1, { key: 'order:1' })).toBe(1);
      await module.close();
    });

    it('a refused password is a warning too, without the password', async () => {
      await using server = await startRedisServer({ password: 'right' });
      const redis = `redis://:wr0ng@127.0.0.1:${server.port}`;
      const { result: module, warnings } = await warningsOf(() => boot(SyncGuardModule.forRoot({ redis })));
      expect(warnings.join()).toMatch(/AuthFailed.*WRONGPASS/s);
      expect(warnings.join()).not.toContain('wr0ng');
      await module.close();
    });
  });

  it('warns of a server that may drop keys, and of a replica', async () => {
    await using server = await startRedisServer({
      args: ['--maxmemory', '100mb', '--maxmemory-policy', 'allkeys-lru'],
    });
    await server.client().replicaof('127.0.0.1', '1');
    const { result: module, warnings } = await warningsOf(() =>
      boot(SyncGuardModule.forRoot({ redis: server.url })),
    );
    expect(warnings.join('\n')).toMatch(/REDIS_REPLICA[^]*REDIS_EVICTION/);
    await module.close();
  });

  describe('shutdown', () => {
    it('lets a body end, frees its key, and leaves a passed client open', async () => {
      const client = workerRedis().client();
      const { app } = await listen('express', { imports: [SyncGuardModule.forRoot({ redis: client })] });
      const { opened, open } = gate();
      const body = app.get(LockService).lock(() => opened, { key: 'order:1' });
      await eventually(async () => expect(await client.exists('syncguard:order:1')).toBe(1));
      const closing = app.close();
      expect(await Promise.race([closing.then(() => 'closed'), client.exists('syncguard:order:1')])).toBe(1);
      open();
      await closing;
      expect(await client.exists('syncguard:order:1')).toBe(0);
      expect(await client.ping()).toBe('PONG');
      await body;
    });

    it('closes a passed client where it is told to, and our own', async () => {
      const client = new Redis(workerRedis().port);
      const ended = new Promise((resolve) => client.once('end', resolve));
      const module = await boot(SyncGuardModule.forRoot({ redis: client, closeClient: true }));
      await module.close();
      await ended;
      const own = await boot(SyncGuardModule.forRoot({ redis: workerRedis().url }));
      const connections = async (): Promise<number> =>
        ((await workerRedis().client().call('CLIENT', 'LIST')) as string).split('name=syncguard ').length - 1;
      expect(await connections()).toBe(1);
      await own.close();
      await eventually(async () => expect(await connections()).toBe(0));
    });

    it('does not hang on a server that stands still', async () => {
      await using server = await startRedisServer();
      const module = await boot(SyncGuardModule.forRoot({ redis: server.url, shutdown: { drainMs: 100 } }));
      server.pause();
      const elapsedMs = stopwatch();
      await module.close();
      expect(elapsedMs()).toBeLessThan(5_000);
      server.resume();
    });

    it('fails calls that come after it, without hanging', async () => {
      const module = await boot(SyncGuardModule.forRoot({ redis: workerRedis().url }));
      const locks = module.get(LockService);
      await module.close();
      await expect(locks.acquire({ key: 'x', ttlMs: 1_000 })).rejects.toMatchObject({
        code: 'ServiceUnavailable',
      });
      await expect(locks.isLocked({ key: 'x' })).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    });
  });
});
