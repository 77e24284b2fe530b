import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Redis } from 'ioredis';
import { inspect } from 'node:util';
import { SyncGuardModule, type SyncGuardModuleOptions } from '../../lib/index.js';
import { hideOptions } from '../../lib/module/hidden-options.js';
import { SYNCGUARD_OPTIONS } from '../../lib/module/syncguard.module.js';

Logger.overrideLogger(false);

const PASSWORD = 'hunter2-and-more';

describe('options that are shown', () => {
  const client = new Redis({ lazyConnect: true, password: PASSWORD });
  const variants: Record<string, unknown> = {
    'a URL': `redis://app:${PASSWORD}@redis.internal:6380/2`,
    'a URL with options': `redis://redis.internal:6380/2?password=${PASSWORD}`,
    'a text that is no URL': `:${PASSWORD}@redis.internal`,
    'a URL in a list': [`redis://:${PASSWORD}@redis.internal`],
    options: { host: 'redis.internal', port: 6380, password: PASSWORD, tls: { passphrase: PASSWORD } },
    sentinels: {
      sentinels: [{ host: 'redis.internal', port: 6380, password: PASSWORD }],
      name: 'main',
      sentinelPassword: PASSWORD,
    },
    'a Cluster': {
      nodes: [
        { host: 'redis.internal', port: 6380, password: PASSWORD },
        `redis://:${PASSWORD}@redis.internal:6380`,
      ],
      options: { redisOptions: { password: PASSWORD } },
    },
    'a client': client,
    'a number': 4711,
  };

  it.each(Object.keys(variants))('have no password: %s', (name) => {
    const options = {
      redis: variants[name],
      keyPrefix: 'app',
      telemetry: { onEvent: () => {}, hashSecret: PASSWORD },
    };
    const hidden = hideOptions(options) as typeof options;
    for (const text of [inspect(hidden, { depth: 10, showHidden: true }), JSON.stringify({ hidden })]) {
      expect(text).not.toContain(PASSWORD);
      expect(text).toContain('app');
    }
    expect({ ...hidden }).toStrictEqual(options);
    if (/internal/.test(inspect(variants[name])) && !/no URL|list/.test(name))
      expect(JSON.stringify(hidden)).toMatch(/redis\.internal.*6380/);
  });

  it('tell two clients apart, and are what they were if they are no object', () => {
    const other = client.duplicate();
    const [one, two] = [client, other].map((redis) => JSON.stringify(hideOptions({ redis })));
    expect(one).not.toBe(two);
    expect(JSON.stringify(hideOptions({ redis: client }))).toBe(one);
    for (const wrong of [undefined, null, 'text', 5]) expect(hideOptions(wrong)).toBe(wrong);
  });

  it.each(['forRoot', 'forRootAsync with a factory', 'forRootAsync with a class'])('of %s', async (way) => {
    const options: SyncGuardModuleOptions = { redis: `redis://:${PASSWORD}@127.0.0.1:1` };
    class Options {
      createSyncGuardOptions = (): SyncGuardModuleOptions => options;
    }
    const imported = {
      forRoot: () => SyncGuardModule.forRoot(options),
      'forRootAsync with a factory': () => SyncGuardModule.forRootAsync({ useFactory: () => options }),
      'forRootAsync with a class': () => SyncGuardModule.forRootAsync({ useClass: Options }),
    }[way]!();
    if (way === 'forRoot') expect(inspect(imported, { depth: 10 })).not.toContain(PASSWORD);
    const module = await Test.createTestingModule({ imports: [imported] }).compile();
    const given = module.get<SyncGuardModuleOptions>(SYNCGUARD_OPTIONS);
    expect(given.redis).toBe(options.redis);
    expect(inspect(given)).toContain('127.0.0.1:1');
    expect(inspect(given) + JSON.stringify(given)).not.toContain(PASSWORD);
    await module.close();
  });
});
