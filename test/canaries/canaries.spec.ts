import { Body, Controller, type DynamicModule, HttpCode, Logger, Param, Post } from '@nestjs/common';
import { Redis } from 'ioredis';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  createMemoryBackend,
  createRedisBackend,
  FenceGuard,
  LockService,
  RateLimit,
  RateLimitGuard,
  type RedisConnectionOptions,
  SecretService,
  ScriptLoader,
  type SyncGuardEvent,
  SyncGuardHealthIndicator,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from '../../lib/index.js';
import { ROUTE_LIMITER } from '../../lib/limit/route/rate-limit.metadata.js';
import { SYNCGUARD_OPTIONS } from '../../lib/module/syncguard.module.js';
import { SYNCGUARD_PARTS } from '../../lib/module/syncguard.parts.js';
import { Random } from '../chaos/random.js';
import { type HttpApp, listen } from '../support/adapters.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { Aviary, type Sink } from './canaries.js';

/** `CANARY_SEED=n` repeats a run. */
const SEED = Number(process.env.CANARY_SEED ?? Date.now() % 1_000_000);
const MINUTE_MS = 60_000;

@Controller()
class Page {
  constructor(private readonly secrets: SecretService) {}

  @Post('login')
  @RateLimit({ name: 'login', limit: 1, windowMs: MINUTE_MS, keyBy: 'body.user' })
  login(): string {
    return 'in';
  }

  @Post('pay')
  @WithLock((user: { user: string }) => user.user, { timeoutMs: 1 })
  async pay(@Body() _user: { user: string }): Promise<string> {
    return 'paid';
  }

  @Post('ask')
  @WithBudget({ scopes: (body: { user: string }) => [`user:${body.user}`], estimate: () => 11 })
  async ask(@Body() _body: { user: string }): Promise<string> {
    return 'answered';
  }

  @Post('create')
  create(@Body() body: never): unknown {
    return this.secrets.create(body);
  }

  @Post('reveal/:id')
  @HttpCode(200)
  reveal(@Param('id') id: string, @Body() body: never): unknown {
    return this.secrets.view(id, body);
  }
}

describe(`canaries of seed ${SEED}`, () => {
  const random = new Random(SEED);
  const aviary = new Aviary(random);
  const texts: Record<Sink, string[]> = {
    logs: [],
    errors: [],
    inspect: [],
    events: [],
    http: [],
    server: [],
  };
  const password = aviary.mark('the password of Redis');
  let server: RedisServer;

  beforeAll(async () => {
    const hear = (...words: unknown[]): void => void texts.logs.push(words.map(say).join(' '));
    Logger.overrideLogger({ log: hear, error: hear, warn: hear, debug: hear, verbose: hear, fatal: hear });
    jest.spyOn(process, 'emitWarning').mockImplementation(hear);
    for (const level of ['log', 'info', 'warn', 'error', 'debug'] as const)
      jest.spyOn(console, level).mockImplementation(hear);
    server = await startRedisServer({ password });
  });
  afterAll(async () => {
    await server.stop();
    jest.restoreAllMocks();
  });

  /** As deep as anybody looks. */
  const say = (value: unknown): string => `${inspect(value, { depth: 10 })} ${jsonOf(value)}`;

  /** Calls, and keeps what is thrown. */
  async function call<T>(run: () => Promise<T> | T): Promise<T | undefined> {
    try {
      return await run();
    } catch (error) {
      texts.errors.push(`${String(error)} ${(error as Error).stack} ${say(error)}`);
      return undefined;
    }
  }

  const nothingSeen = (): string[] =>
    (Object.keys(texts) as Sink[]).flatMap((sink) => aviary.seen(sink, texts[sink].splice(0).join('\n')));

  const moduleOn = (redis: RedisConnectionOptions | undefined, commandTimeoutMs: number): DynamicModule =>
    SyncGuardModule.forRoot({
      redis,
      commandTimeoutMs,
      budget: { reaper: false, limits: [{ scope: 'user', period: 'lifetime', limit: 10 }] },
      limits: { default: { limit: 1_000, windowMs: MINUTE_MS } },
      shutdown: { drainMs: 0 },
      telemetry: {
        onEvent: (event: SyncGuardEvent) => void texts.events.push(say(event)),
        hashSecret: aviary.text('telemetry.hashSecret'),
      },
    });

  const start = (redis: RedisConnectionOptions | undefined, commandTimeoutMs = 10_000): Promise<HttpApp> =>
    listen(random.pick(['express', 'fastify']), {
      imports: [moduleOn(redis, commandTimeoutMs)],
      controllers: [Page],
      providers: [RateLimitGuard],
    });

  const TOKENS = [
    ...[LockService, FenceGuard, AbuseLimiterService, BudgetService, SecretService, CounterService],
    ...[ScriptLoader, SyncGuardHealthIndicator, SyncGuardModule, RateLimitGuard],
    ...[ROUTE_LIMITER, SYNCGUARD_OPTIONS],
  ];
  const lookAround = ({ app }: HttpApp): void => {
    for (const token of TOKENS) texts.inspect.push(say(app.get(token, { strict: false })));
    // Nobody asks for these, but they may hold what only the server may see.
    const { connection, options } = app.get<{ connection: unknown; options: unknown }>(SYNCGUARD_PARTS);
    texts.inspect.push(say({ connection, options }));
  };

  /** Each of a feature's texts, used as it should be, until something is refused. */
  const USES: Record<string, (http: HttpApp) => Promise<unknown>> = {
    async secrets({ app }) {
      const secrets = app.get(SecretService);
      const id = aviary.text('the id of a secret').slice(0, 60);
      const viewId = aviary.text('a viewId');
      const created = await call(() =>
        secrets.create({
          ...{ id: id.startsWith('receipt.') ? undefined : id, views: 3, ttlMs: MINUTE_MS, maxFailures: 3 },
          payload: aviary.text('a payload', 'server'),
          meta: { hint: aviary.text('meta', 'server') },
          label: aviary.mark('a label', 'server', 'events'),
        }),
      );
      if (!created) return;
      const receipt = aviary.keep('a receipt', created.receipt);
      aviary.keep('the random part of a receipt', receipt.slice(-22));
      await call(() => secrets.view(created.id, { viewId }));
      const viewing = call(() => secrets.view(created.id, { viewId, leaseMs: 10_000 }));
      lookAround({ app } as HttpApp); // while the call is under way
      await viewing;
      await call(() => secrets.peek(created.id));
      await call(() => secrets.release(created.id, viewId));
      await call(() => secrets.status(receipt));
      await call(() =>
        secrets.create({ id: created.id, payload: aviary.text('a second payload', 'server'), views: 1 }),
      );
      await call(() => secrets.burn(receipt));
    },
    async 'wrong arguments of secrets'({ app }) {
      const secrets = app.get<Record<string, (...args: unknown[]) => Promise<unknown>>>(SecretService);
      const names = 'payload views ttlMs id meta maxFailures label tombstoneMs signal'.split(' ');
      for (const name of names)
        for (const wrap of [
          (text: string) => text,
          (text: string) => [text],
          (text: string) => ({ [name]: text }),
        ])
          await call(() =>
            secrets['create']!({
              ...{ payload: 5, views: 1, [name]: wrap(aviary.text(`create({ ${name} })`, 'server')) },
            }),
          );
      for (const name of ['viewId', 'leaseMs', 'signal'])
        await call(() => secrets['view']!('id', { [name]: [aviary.text(`view(id, { ${name} })`)] }));
      for (const method of ['create', 'view', 'peek', 'burn', 'status', 'confirm', 'release']) {
        await call(() => secrets[method]!([aviary.text(`${method}() of a list`)]));
        await call(() =>
          secrets[method]!(aviary.text(`${method}() of a text`), aviary.text(`${method}(id, text)`)),
        );
        await call(() => secrets[method]!('id', 'viewId', aviary.text(`${method}(id, viewId, text)`)));
      }
    },
    async locks({ app }) {
      const [locks, key] = [app.get(LockService), aviary.text('the key of a lock', 'server')];
      const held = await call(() => locks.acquire({ key, ttlMs: MINUTE_MS }));
      await call(() => locks.acquire({ key, ttlMs: MINUTE_MS }));
      await call(() => locks.lock(() => 'body', { key, timeoutMs: 50 }));
      await call(() => locks.lookup({ key }));
      lookAround({ app } as HttpApp);
      if (held?.ok) await call(() => held.release());
      await call(() => locks.lock(() => Promise.reject(new Error('of the app')), { key }));
    },
    async fences({ app }) {
      const [fences, resource] = [app.get(FenceGuard), aviary.text('a resource', 'server')];
      const lockId = 'L'.repeat(21) + 'A';
      for (const fence of ['000000000000009', '000000000000001'])
        await call(() => fences.apply({ resource, fence, lockId }));
    },
    async limits({ app }) {
      const [limits, key] = [app.get(AbuseLimiterService), aviary.text('a limited key')];
      const policy = { name: 'otp', temp: { threshold: 2, windowMs: MINUTE_MS, blockMs: MINUTE_MS } };
      for (let i = 0; i < 3; i++) await call(() => limits.limiter(key, policy));
      await call(() => limits.peek(key, policy));
      lookAround({ app } as HttpApp);
      await call(() => limits.unblock(key, policy));
    },
    async counters({ app }) {
      const [counters, key, id] = [
        app.get(CounterService),
        aviary.text('a counter'),
        aviary.text('the id of a count'),
      ];
      for (let i = 0; i < 2; i++)
        await call(() => counters.increment(key, { max: 1, windowMs: MINUTE_MS, id }));
      await call(() => counters.peek(key));
    },
    async budgets({ app }) {
      const [budgets, scope] = [
        app.get(BudgetService),
        `user:${aviary.text('a scope', 'server', 'errors').slice(0, 100)}`,
      ];
      const id = aviary.text('the id of a hold', 'server');
      const root = aviary.mark('a root', 'server');
      const meta = { prompt: aviary.text('the meta of a hold', 'server') };
      await call(() => budgets.reserve({ root, scopes: [scope], amount: 9, id, meta }));
      await call(() => budgets.reserve({ root, scopes: [scope], amount: 9 }));
      await call(() => budgets.run(() => 'body', { root, scopes: [scope], amount: 9 }));
      await call(() => budgets.refund({ root, id }, 1, aviary.text('the id of a refund', 'server')));
      lookAround({ app } as HttpApp);
      await call(() => budgets.finalize({ root, id }, 3));
    },
    async http({ app, url }) {
      const post = async (path: string, body: unknown): Promise<unknown> => {
        const response = await fetch(`${url}/${path}`, {
          ...{ method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) },
        });
        const text = await response.text();
        texts.http.push(`${response.status} ${inspect([...response.headers])} ${text}`);
        return text.startsWith('{') ? JSON.parse(text) : text;
      };
      const user = aviary.text('body.user', 'server').slice(0, 100);
      const body = { user, password: aviary.text('body.password') };
      for (const path of ['login', 'login', 'ask']) await post(path, body);
      const held = await call(() => app.get(LockService).acquire({ key: user, ttlMs: MINUTE_MS }));
      await post('pay', body);
      if (held?.ok) await held.release();
      const payload = aviary.text('a payload over HTTP', 'server', 'http');
      const { id } = (await post('create', {
        payload,
        views: 1,
        label: aviary.mark('a label', 'server', 'events'),
      })) as {
        id: string;
      };
      await post(`reveal/${id}`, { viewId: aviary.text('a viewId over HTTP', 'http') });
      await post(`reveal/${id}`, {});
      await post('create', { payload: [aviary.text('a wrong payload over HTTP')], views: 1 });
      await post('create', { payload: 'p', views: aviary.text('wrong views over HTTP') });
    },
  };

  const CONNECTIONS: Record<string, () => RedisConnectionOptions | undefined> = {
    memory: () => undefined,
    'a URL': () => server.url,
    options: () => ({ host: server.host, port: server.port, password }),
    'a client': () => server.client(),
  };

  it.each(Object.keys(CONNECTIONS))('are seen nowhere, with all features on %s', async (name) => {
    const admin = server.client();
    await admin.config('SET', 'slowlog-log-slower-than', '0');
    await admin.config('SET', 'slowlog-max-len', '100000');
    await admin.slowlog('RESET');
    const monitor = await admin.monitor();
    monitor.on('monitor', (_time, args: string[]) => texts.server.push(args.join(' ')));

    const http = await start(CONNECTIONS[name]!());
    const uses = Object.keys(USES).sort(() => random.next() - 0.5);
    for (const use of uses) {
      await USES[use]!(http);
      lookAround(http);
    }
    // Keys that hold something else, and a server that refuses.
    for (const key of await admin.keys('*')) await admin.multi().del(key).rpush(key, 'theirs').exec();
    for (const use of uses) await USES[use]!(http);
    await admin.config('SET', 'maxmemory', '1');
    for (const use of uses) await USES[use]!(http);
    await admin.config('SET', 'maxmemory', '0');
    await admin.flushall();
    await http.app.close();
    for (const use of uses.filter((each) => each !== 'http')) await USES[use]!(http);

    texts.server.push(inspect(await admin.call('SLOWLOG', 'GET', '-1'), { depth: 5, maxArrayLength: null }));
    monitor.disconnect();
    expect(nothingSeen()).toStrictEqual([]);
  });

  it('are seen nowhere where Redis refuses the password, cannot be reached, or the options are wrong', async () => {
    const wrong = (): string => aviary.mark('a wrong password');
    const { host, port } = server;
    const reachable: RedisConnectionOptions[] = [
      `redis://:${wrong()}@${host}:${port}`,
      `redis://app:${wrong()}@${host}:${port}`,
      { host, port, password: wrong() },
      `redis://:${wrong()}@${host}:1`,
      { sentinels: [{ host, port: 1 }], name: 'main', sentinelPassword: wrong(), password: wrong() },
      { nodes: [{ host, port }], options: { redisOptions: { password: wrong() } } },
    ];
    for (const redis of reachable) {
      const http = await start(redis, 100);
      await USES['counters']!(http);
      texts.errors.push(say(await http.app.get(SyncGuardHealthIndicator).isHealthy()));
      lookAround(http);
      await http.app.close();
    }
    const malformed: unknown[] = [
      `:${wrong()}@${host}`,
      `http://:${wrong()}@${host}`,
      `redis://:${wrong()}%@${host}`,
      `redis://:${wrong()}@`,
      `redis://:${wrong()}@${host}/name`,
      { nodes: `redis://:${wrong()}@${host}` },
      { nodes: [`http://:${wrong()}@${host}`] },
      { nodes: [[wrong()]] },
      { host: `redis://:${wrong()}@${host}` },
      { host: `app:${wrong()}@${host}` },
      { path: `redis://:${wrong()}@${host}` },
      { url: `redis://:${wrong()}@${host}` },
      { host, port: `redis://:${wrong()}@${host}` },
      { host, db: wrong(), password: wrong() },
      { sentinels: `redis://:${wrong()}@${host}` },
      { sentinels: [`redis://:${wrong()}@${host}`], name: 'main' },
      [`redis://:${wrong()}@${host}`],
    ];
    for (const redis of malformed) await call(() => SyncGuardModule.forRoot({ redis: redis as never }));
    await call(() =>
      SyncGuardModule.forRoot({ telemetry: { onEvent: () => {}, hashSecret: [wrong()] as never } }),
    );
    expect(texts.errors.length).toBeGreaterThan(malformed.length);
    expect(nothingSeen()).toStrictEqual([]);
  });

  it('are seen nowhere in backends without Nest', async () => {
    const client = new Redis({ host: server.host, port: server.port, password });
    const [redis, memory] = [createRedisBackend(client), createMemoryBackend()];
    await Promise.all([redis, memory].map((locks) => locks.acquire({ key: 'order:7', ttlMs: 1_000 })));
    texts.inspect.push(say(redis), say(memory));
    await call(() => createRedisBackend(aviary.text('a text in place of a client') as never));
    await nextTurn();
    client.disconnect();
    expect(nothingSeen()).toStrictEqual([]);
  });

  it('would be found', () => {
    const mark = aviary.mark('a lost one');
    for (const text of [
      mark,
      say({ deep: [{ mark }] }),
      say(Buffer.from(mark)),
      Buffer.from(mark).toString('hex'),
    ])
      expect(aviary.seen('logs', text)).toHaveLength(1);
  });
});

function jsonOf(value: unknown): string {
  const seen = new Set<unknown>();
  const once = (_: string, each: unknown): unknown => {
    if (typeof each === 'bigint') return String(each);
    if (typeof each !== 'object' || each === null) return each;
    if (seen.has(each)) return '[seen]';
    seen.add(each);
    return each;
  };
  return JSON.stringify(value, once) ?? '';
}
