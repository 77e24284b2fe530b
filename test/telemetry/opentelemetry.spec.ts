import { Logger } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import type * as api from '@opentelemetry/api';
import { context, metrics, trace } from '@opentelemetry/api';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import {
  AlwaysOffSampler,
  InMemorySpanExporter,
  NodeTracerProvider,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-node';
import {
  AbuseLimiterService,
  BudgetService,
  hashKey,
  LockService,
  OnceService,
  type SyncGuardEvent,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { instrument } from 'nestjs-syncguard/opentelemetry';
import type * as entry from '../../lib/opentelemetry.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startTcpProxy } from '../support/tcp-proxy.js';
import { doAll, LIMITS, type Scraped, startScraped } from './scraped.js';

beforeAll(() => void Logger.overrideLogger(false));

const spans = new InMemorySpanExporter();
const tracerProvider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
beforeAll(() => tracerProvider.register());
afterAll(() => tracerProvider.shutdown());

let scraped: Scraped;
beforeEach(async () => {
  scraped = await startScraped();
  spans.reset();
});
afterEach(() => scraped.stop());
afterEach(() => metrics.disable());

const apps: TestingModule[] = [];
afterEach(() => Promise.all(apps.splice(0).map((app) => app.close())));

async function appWith(
  options: SyncGuardOptions,
  onEvent: (event: SyncGuardEvent) => void = instrument({ meterProvider: scraped.meterProvider }),
): Promise<TestingModule> {
  const root = SyncGuardModule.forRoot({ ...options, telemetry: { onEvent } });
  const app = await Test.createTestingModule({ imports: [root] }).compile();
  apps.push(app);
  return app;
}

const STORES: [string, () => Promise<SyncGuardOptions>][] = [
  ['memory', async () => ({})],
  ['Redis', async () => ({ redis: (await freshRedis()).client(), limit: { denyCacheMs: 0 } })],
];

/** Those of a scrape whose names begin so, without buckets. */
const those = (samples: ReadonlyMap<string, number>, start: string): Record<string, number> =>
  Object.fromEntries([...samples].filter(([name]) => name.startsWith(start) && !/_bucket/.test(name)));

describe.each(STORES)('metrics on %s', (_, open) => {
  it('count what was done, by what it has come to', async () => {
    const app = await appWith({ ...LIMITS, ...(await open()) });
    const before = { syncguard_outage: 0, syncguard_lock_lost_total: 0 };
    expect(Object.fromEntries(await scraped.scrape())).toEqual(before);
    await doAll(app);
    const samples = await scraped.scrape();
    expect(those(samples, 'syncguard_lock_lost')).toEqual({ syncguard_lock_lost_total: 1 });
    expect(those(samples, 'syncguard_lock_wait_duration_count')).toEqual({
      syncguard_lock_wait_duration_count: 2,
      'syncguard_lock_wait_duration_count{error_type="AcquisitionTimeout"}': 1,
    });
    // Of two locks of lock(), of a handle, and of the release that has found its lock gone.
    expect(samples.get('syncguard_lock_held_duration_count')).toBe(3);
    expect(those(samples, 'syncguard_limit')).toEqual({
      'syncguard_limit_decisions_total{syncguard_limit_policy="api",syncguard_limit_result="allowed"}': 2,
      'syncguard_limit_decisions_total{syncguard_limit_policy="api",syncguard_limit_result="denied"}': 1,
      'syncguard_limit_decisions_total{syncguard_limit_policy="tried",syncguard_limit_result="shadow_allowed"}': 1,
      'syncguard_limit_decisions_total{syncguard_limit_policy="tried",syncguard_limit_result="shadow_denied"}': 2,
    });
    expect(those(samples, 'syncguard_budget')).toEqual({
      'syncguard_budget_spent_total{syncguard_budget_scope_type="user"}': 7,
      'syncguard_budget_refused_total{syncguard_budget_scope_type="user"}': 1,
    });
    expect(those(samples, 'syncguard_once')).toEqual({
      'syncguard_once_runs_total{syncguard_once_result="completed"}': 1,
      'syncguard_once_runs_total{syncguard_once_result="failed"}': 1,
      'syncguard_once_runs_total{syncguard_once_result="replayed"}': 1,
    });
    const calls = those(samples, 'syncguard_redis_call_duration_count');
    expect(calls).toMatchObject({
      'syncguard_redis_call_duration_count{syncguard_operation="limit.check"}': 6,
      'syncguard_redis_call_duration_count{syncguard_operation="budget.finalize"}': 1,
      'syncguard_redis_call_duration_count{syncguard_operation="once.claim"}': 2,
    });
    expect(Object.keys(calls).join()).not.toMatch(/lock\.lock|\.run/);
  });

  it('measure in seconds, and count a lock that stays for its minHoldMs once', async () => {
    const locks = (await appWith(await open())).get(LockService);
    const before = performance.now();
    await locks.lock(() => 1, { key: 'nightly', minHoldMs: 30_000 });
    const tookSeconds = (performance.now() - before) / 1_000;
    const samples = await scraped.scrape();
    expect(samples.get('syncguard_lock_held_duration_count')).toBe(1);
    expect(samples.get('syncguard_lock_held_duration_sum')).toBeLessThanOrEqual(tookSeconds);
    expect(samples.get('syncguard_lock_wait_duration_sum')).toBeLessThanOrEqual(tookSeconds);
  });

  it('have no key in them, and few series, whatever the names are', async () => {
    const SECRET = 'ann@example.org';
    const hostile = ['__proto__', 'constructor', 'a"b', 'a\\b', '{x="1"}', ...Array(1_000).keys()].map(
      String,
    );
    const limits = ({ type }: { type: string }) => [{ scope: type, period: 'lifetime' as const, limit: 1 }];
    const app = await appWith({ ...(await open()), budget: { limits, reaper: false } });
    const [locks, limiter] = [app.get(LockService), app.get(AbuseLimiterService)] as const;
    const [budgets, calls] = [app.get(BudgetService), app.get(OnceService)] as const;
    await Promise.all(
      hostile.flatMap((name) => [
        limiter.check(SECRET, { name: `policy ${name}`, limit: 1, windowMs: 60_000 }),
        budgets.charge({ id: `${SECRET} ${name}`, scopes: [`${name}:${SECRET}`], amount: 1 }),
        locks.lock(() => 1, { key: `${SECRET} ${name}` }),
        calls.run(() => 1, { key: `${SECRET} ${name}` }),
      ]),
    );
    const samples = await scraped.scrape();
    expect([...samples.keys()].join()).not.toContain('ann');
    const decisions = those(samples, 'syncguard_limit');
    const spent = those(samples, 'syncguard_budget');
    for (const counts of [decisions, spent]) {
      expect(Object.keys(counts)).toHaveLength(101);
      expect(Object.values(counts).reduce((sum, each) => sum + each, 0)).toBe(hostile.length);
    }
    expect(Object.keys(spent)).toContain('syncguard_budget_spent_total{syncguard_budget_scope_type="other"}');
    expect(samples.size).toBeLessThan(400);
  });
});

describe('metrics while Redis is away', () => {
  it('say so, by the code of each call, and that it is back', async () => {
    const proxy = await startTcpProxy((await freshRedis()).port);
    const redis = workerRedis().client({ port: proxy.port, retryStrategy: () => 20 });
    const app = await appWith({ ...LIMITS, redis, commandTimeoutMs: 200 });
    const [locks, limiter] = [app.get(LockService), app.get(AbuseLimiterService)] as const;
    await locks.lock(() => 1, { key: 'a' });
    await proxy.refuse();
    await eventually(async () => {
      await locks.lock(() => 1, { key: 'a', timeoutMs: 0 }).catch(() => {});
      expect((await scraped.scrape()).get('syncguard_outage')).toBe(1);
    });
    // This process counts by itself, which is a decision, and no call of Redis that was answered.
    expect(await limiter.check('203.0.113.7', 'api')).toMatchObject({ allowed: true, degraded: true });
    const away = await scraped.scrape();
    expect(away.get('syncguard_outage')).toBe(1);
    expect([...away.keys()].join('\n')).toMatch(
      /syncguard_lock_wait_duration_count\{error_type="(ServiceUnavailable|NetworkTimeout)"\}/,
    );
    expect([...away.keys()].join('\n')).toMatch(
      /redis_call_duration_count\{syncguard_operation="lock.acquire",error_type="(ServiceU|NetworkT)/,
    );
    expect(those(away, 'syncguard_limit')).toEqual({
      'syncguard_limit_decisions_total{syncguard_limit_policy="api",syncguard_limit_result="allowed"}': 1,
    });
    await proxy.restore();
    await eventually(() => locks.lock(() => 1, { key: 'a', timeoutMs: 0 }));
    expect((await scraped.scrape()).get('syncguard_outage')).toBe(0);
    await app.close();
    redis.disconnect();
    await proxy.stop();
  });
});

describe('a provider', () => {
  const check = (app: TestingModule): Promise<unknown> =>
    app.get(AbuseLimiterService).check('203.0.113.7', 'api');
  const ALLOWED =
    'syncguard_limit_decisions_total{syncguard_limit_policy="api",syncguard_limit_result="allowed"}';

  it('that is registered after instrument() gets all counts, also those from before, and another after it too', async () => {
    const app = await appWith(LIMITS, instrument());
    await check(app);
    metrics.setGlobalMeterProvider(scraped.meterProvider);
    await check(app);
    expect((await scraped.scrape()).get(ALLOWED)).toBe(2);
    metrics.disable();
    const other = await startScraped();
    metrics.setGlobalMeterProvider(other.meterProvider);
    await app.get(LockService).lock(() => 1, { key: 'a' });
    expect((await other.scrape()).get('syncguard_lock_held_duration_count')).toBe(1);
    await other.stop();
  });

  it('that is missing makes nothing, and harms nothing', async () => {
    const app = await appWith(LIMITS, instrument());
    await doAll(app);
  });

  it('is shared by two copies of @opentelemetry/api, and is none for one that is newer than the first', async () => {
    let copy!: typeof api;
    jest.isolateModules(() => (copy = jest.requireActual('@opentelemetry/api')));
    expect(copy.metrics).not.toBe(metrics);
    copy.metrics.setGlobalMeterProvider(scraped.meterProvider);
    const app = await appWith(LIMITS, instrument());
    await check(app);
    expect((await scraped.scrape()).get(ALLOWED)).toBe(1);

    const shared = (globalThis as never)[Symbol.for('opentelemetry.js.api.1')] as { version: string };
    const { version } = shared;
    jest.isolateModules(() => {
      shared.version = '1.2.0';
      const { instrument: ofNewer } = jest.requireActual<typeof entry>('../../lib/opentelemetry.js');
      const { metrics: newer } = jest.requireActual<typeof api>('@opentelemetry/api');
      expect(newer.getMeterProvider()).not.toBe(scraped.meterProvider);
      const event = { feature: 'limit', type: 'check', result: 'ok', policy: 'api', durationMs: 1 } as const;
      ofNewer()(event);
      ofNewer({ meterProvider: scraped.meterProvider })(event);
      shared.version = version;
    });
    expect((await scraped.scrape()).get(ALLOWED)).toBeGreaterThanOrEqual(1);
  });

  it('that throws changes no result', async () => {
    const broken = {
      getMeter: () => {
        const throws = (): never => {
          throw new Error('broken');
        };
        const gauge = { addCallback: () => gauge };
        return {
          createHistogram: () => ({ record: throws }),
          createObservableGauge: () => gauge,
          createObservableCounter: () => gauge,
        };
      },
    };
    const app = await appWith(LIMITS, instrument({ meterProvider: broken as never }));
    expect(await app.get(LockService).lock(() => 'done', { key: 'a' })).toBe('done');
  });

  it.each([
    [{ meterProvider: {} }, /meterProvider must be a MeterProvider/],
    [{ meterProvider: null }, /meterProvider must be/],
    [{ tracerProvider: 'x' }, /tracerProvider must be a TracerProvider/],
    [{ meter: new MeterProvider() }, /instrument\.meter is not an option/],
  ])('that is none is refused: %j', (options, message) => {
    expect(() => instrument(options as never)).toThrow(message);
  });
});

describe.each(STORES)('spans on %s', (_, open) => {
  const tracer = trace.getTracer('test');
  const NAMES = /^syncguard\.(lock\.wait|lock\.hold|budget\.body|once\.body)$/;

  /** Runs a call under a span, and returns what became of it: each span with the name of its parent. */
  async function under(call: () => Promise<unknown>): Promise<{ spans: ReadableSpan[]; tree: string[] }> {
    spans.reset();
    const before = Date.now();
    await tracer.startActiveSpan('request', async (span) => {
      await call().catch(() => {});
      span.end();
    });
    const all = spans.getFinishedSpans();
    const named = new Map(all.map((each) => [each.spanContext().spanId, each.name]));
    for (const { startTime, endTime } of all) {
      const [startMs, endMs] = [startTime, endTime].map(([s, ns]) => s * 1_000 + ns / 1e6) as [
        number,
        number,
      ];
      expect(startMs).toBeGreaterThanOrEqual(before - 2);
      expect(endMs).toBeGreaterThanOrEqual(startMs);
      expect(endMs).toBeLessThanOrEqual(Date.now() + 2);
    }
    const tree = all.map(
      ({ name, parentSpanContext }) => `${named.get(parentSpanContext?.spanId ?? '')} > ${name}`,
    );
    return { spans: all.filter(({ name }) => NAMES.test(name)), tree: tree.sort() };
  }

  const work = (): Promise<string> =>
    tracer.startActiveSpan('work', async (span) => {
      await new Promise(setImmediate);
      span.end();
      return 'done';
    });

  it('are children of the span of the call, beside what ran inside', async () => {
    const app = await appWith({ ...LIMITS, ...(await open()) });
    const [locks, budgets, calls] = [app.get(LockService), app.get(BudgetService), app.get(OnceService)];
    const key = 'order:1';
    const { tree, spans: made } = await under(async () => {
      await locks.lock(work, { key });
      await budgets.run(work, { scopes: ['user:42'], amount: 1 });
      await calls.run(work, { key });
      await calls.run(work, { key });
    });
    expect(tree).toEqual(
      [
        'undefined > request',
        'request > syncguard.lock.wait',
        'request > syncguard.lock.hold',
        'request > syncguard.budget.body',
        'request > syncguard.once.body',
        'request > work',
        'request > work',
        'request > work',
      ].sort(),
    );
    for (const { name, attributes, status } of made) {
      expect(status.code).toBe(0);
      if (name !== 'syncguard.budget.body')
        expect(attributes).toEqual({ 'syncguard.key.hash': hashKey(key) });
    }
  });

  it('say what went wrong, and have no key', async () => {
    const app = await appWith({ ...LIMITS, ...(await open()) });
    const [locks, budgets, calls] = [app.get(LockService), app.get(BudgetService), app.get(OnceService)];
    const fail = (): Promise<never> => Promise.reject(new Error('ann@example.org'));
    const key = 'ann@example.org';
    const { spans: made } = await under(async () => {
      const held = await locks.acquire({ key, ttlMs: 30_000 });
      await locks.lock(work, { key, timeoutMs: 5 }).catch(() => {});
      if (held.ok) await held.release();
      await budgets.run(fail, { scopes: ['user:42'], amount: 1 }).catch(() => {});
      await calls.run(fail, { key }).catch(() => {});
    });
    expect(
      made.map(({ name, status, attributes }) => [name, status.message, attributes['error.type']]),
    ).toEqual([
      ['syncguard.lock.wait', 'timeout', 'AcquisitionTimeout'],
      ['syncguard.lock.hold', undefined, undefined],
      ['syncguard.budget.body', 'threw', undefined],
      ['syncguard.once.body', 'threw', undefined],
    ]);
    expect(JSON.stringify(made.map(({ attributes, status }) => [attributes, status]))).not.toContain('ann');
  });

  it('are not made without a span that records, and go to the provider that is given', async () => {
    const options = { ...LIMITS, ...(await open()) };
    await (await appWith(options)).get(LockService).lock(work, { key: 'a' });
    expect(spans.getFinishedSpans().filter(({ name }) => NAMES.test(name))).toEqual([]);
    const off = new NodeTracerProvider({ sampler: new AlwaysOffSampler() }).getTracer('off');
    const unsampled = trace.setSpan(context.active(), off.startSpan('request'));
    await context.with(unsampled, async () =>
      (await appWith(options)).get(LockService).lock(work, { key: 'a' }),
    );
    expect(spans.getFinishedSpans().filter(({ name }) => NAMES.test(name))).toEqual([]);

    const own = new InMemorySpanExporter();
    const given = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(own)] });
    const app = await appWith(options, instrument({ tracerProvider: given }));
    await under(() => app.get(LockService).lock(work, { key: 'a' }));
    expect(own.getFinishedSpans().map(({ name }) => name)).toEqual([
      'syncguard.lock.wait',
      'syncguard.lock.hold',
    ]);
  });
});
