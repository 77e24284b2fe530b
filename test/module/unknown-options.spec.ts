import { Test } from '@nestjs/testing';
import { Redis } from 'ioredis';
import {
  AbuseLimiterService,
  CounterService,
  createMemoryBackend,
  createRedisBackend,
  LockService,
  RateLimit,
  SecretService,
  SyncGuardModule,
  WithLock,
  withTelemetry,
} from '../../lib/index.js';
import { SyncGuardTestingModule } from '../../lib/testing/index.js';

const policy = { name: 'p', limit: 1, windowMs: 1_000 };

async function services(): Promise<Record<'secrets' | 'counters' | 'limiter', Record<string, Call>>> {
  const module = await Test.createTestingModule({ imports: [SyncGuardTestingModule.forRoot()] }).compile();
  const of = (token: new (...args: never[]) => object): Record<string, Call> =>
    module.get<Record<string, Call>>(token);
  return { secrets: of(SecretService), counters: of(CounterService), limiter: of(AbuseLimiterService) };
}

type Call = (...args: unknown[]) => Promise<unknown>;

describe('a misspelt option', () => {
  it.each([
    ['secrets', 'create', [{ payload: 'p', maxViews: 1, ttlMs: 1_000 }], 'Did you mean views?'],
    ['secrets', 'create', [{ payload: 'p', views: 1, ttl: 1_000 }], 'Did you mean ttlMs?'],
    ['secrets', 'create', [{ payload: 'p', views: 1, ttlMS: 1_000 }], 'Did you mean ttlMs?'],
    ['secrets', 'view', ['id', { lease: 1_000 }], 'Did you mean leaseMs?'],
    ['secrets', 'view', ['id', { viewID: 'v' }], 'Did you mean viewId?'],
    ['counters', 'increment', ['k', { max: 1, windowMs: 1, costs: 2 }], 'Did you mean cost?'],
    ['limiter', 'check', ['k', policy, { Cost: 2 }], 'Did you mean cost?'],
  ] as const)('of %s.%s() is told the nearest name: %j', async (service, call, args, hint) => {
    const calling = async (): Promise<unknown> => (await services())[service][call]?.(...args);
    await expect(calling()).rejects.toThrow(hint);
  });

  it('that was spread from a request is cut short, and guesses nothing far-fetched', async () => {
    const { secrets } = await services();
    const error: unknown = await secrets.view?.('id', { ['x'.repeat(10_000)]: 1 }).catch((e: unknown) => e);
    expect((error as Error).message.length).toBeLessThan(200);
    expect((error as Error).message).not.toContain('Did you mean');
  });

  it('counts and shows nothing', async () => {
    const { counters, limiter } = await services();
    await expect(counters.increment?.('k', { max: 1, windowMs: 1_000, by: 1 })).rejects.toThrow('options.by');
    await expect(limiter.check?.('k', policy, { weight: 1 })).rejects.toThrow('options.weight');
    expect(await counters.peek?.('k')).toMatchObject({ count: 0 });
    expect(await limiter.peek?.('k', policy)).toMatchObject({ shortCount: 0 });
  });
});

describe('a config that is not known', () => {
  const onEvent = (): void => {};
  const client = (): Redis => new Redis({ lazyConnect: true });

  type Build = () => unknown;
  const by =
    (make: (options: never) => unknown) =>
    (options: unknown): Build =>
    () =>
      make(options as never);
  const redis = by((config) => createRedisBackend(client(), config));
  const memory = by(createMemoryBackend);
  const root = by((options) => SyncGuardModule.forRoot(options));
  const rootAsync = by((options) => SyncGuardModule.forRootAsync(options));
  const testing = by((options) => SyncGuardTestingModule.forRoot(options));
  const telemetry = by((options) => withTelemetry(createMemoryBackend(), options));

  it.each<[string, Build, RegExp]>([
    ['of createRedisBackend', redis({ prefix: 'x' }), /config\.prefix.*keyPrefix\?/],
    ['of createRedisBackend, of the module', redis({ http: true }), /config\.http/],
    ['of createRedisBackend, null', redis(null), /config must be an object/],
    ['of createRedisBackend, warn', redis({ warn: 1 }), /config\.warn/],
    ['of createMemoryBackend', memory({ clok: 1 }), /config\.clok.*clock\?/],
    ['of createMemoryBackend, a clock', memory({ clock: 1 }), /config\.clock must/],
    ['of withTelemetry', telemetry({ onEvents: onEvent }), /onEvent\?/],
    ['of @RateLimit', () => RateLimit('login', { overide: true } as never), /override\?/],
    ['of forRoot, isGlobal', root({ isglobal: true }), /isGlobal\?/],
    ['of forRoot', root({ keyprefix: 'x' }), /keyPrefix\?/],
    ['of forRoot, a Cluster', root({ redis: { nodes: [{}], option: {} } }), /redis\.option.*options\?/],
    ['of forRootAsync', rootAsync({ usefactory: () => ({}) }), /useFactory\?/],
    ['of forRootAsync, none', rootAsync({}), /one of useFactory/],
    ['of forRootAsync, null', rootAsync(null), /must be an object/],
    ['of the testing module', testing({ secret: { tombstone: 1 } }), /tombstoneMs\?/],
    ['of the testing module, its own', testing({ clocks: 1 }), /options\.clocks/],
  ])('%s', (_, build, message) => {
    expect(build).toThrow(message);
  });
});

describe('the key of lock()', () => {
  it.each([
    [{ keyss: ['a'] }, /options\.keyss is not an option\. Did you mean keys\?/],
    [{ Key: 'a' }, /options\.Key is not an option\. Did you mean key\?/],
    [{ key: ['a', 'b'] }, /Pass several keys as `keys`/],
    [{}, /^key must be a string, got undefined/],
  ])('%j', async (options, message) => {
    const module = await Test.createTestingModule({ imports: [SyncGuardTestingModule.forRoot()] }).compile();
    await expect(module.get(LockService).lock(() => 1, options as never)).rejects.toMatchObject({
      code: 'InvalidArgument',
      message: expect.stringMatching(message) as string,
    });
  });

  it('is not a list for @WithLock', () => {
    expect(() => WithLock(['a', 'b'] as never)).toThrow(
      /got an array of 2.*a function that returns an array/,
    );
  });
});
