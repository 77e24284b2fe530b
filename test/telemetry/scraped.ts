import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { AbuseLimiterService, BudgetService, LockService, OnceService } from 'nestjs-syncguard';

/** A Prometheus that scrapes this process over HTTP. */
export interface Scraped {
  readonly meterProvider: MeterProvider;
  /** Returns the samples: `name{label="value"}` and its number. */
  scrape(): Promise<Map<string, number>>;
  stop(): Promise<void>;
}

export async function startScraped(): Promise<Scraped> {
  const exporter = new PrometheusExporter({
    preventServerStart: true,
    withoutScopeInfo: true,
    withoutTargetInfo: true,
  });
  const meterProvider = new MeterProvider({ readers: [exporter] });
  const server = createServer((request, response) => exporter.getMetricsRequestHandler(request, response));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    meterProvider,
    scrape: async () => samplesOf(await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()),
    stop: async () => {
      await meterProvider.shutdown();
      server.closeAllConnections();
      await once(server.close(), 'close');
    },
  };
}

/** The labels of the exporter's own are left out. */
const samplesOf = (text: string): Map<string, number> =>
  new Map(
    [...text.matchAll(/^([a-z_]+)(?:\{(.*)\})? (\S+)(?: \d+)?$/gm)].map(([, name, labels = '', value]) => {
      const own = labels.replace(/,?otel_scope_[a-z_]+="[^"]*"/g, '').replace(/^,/, '');
      return [own === '' ? String(name) : `${name}{${own}}`, Number(value)];
    }),
  );

export const LIMITS = {
  limits: {
    api: { limit: 2, windowMs: 60_000, algorithm: 'fixed-window' },
    tried: { limit: 1, windowMs: 60_000, shadow: true },
  },
  budget: { limits: [{ scope: 'user', period: 'lifetime', limit: 10 }], reaper: false },
} as const;

interface Services {
  get<T>(service: new (...args: never[]) => T): T;
}

/** Does what each metric counts, at least once. */
export async function doAll(app: Services): Promise<void> {
  const locks = app.get(LockService);
  const limiter = app.get(AbuseLimiterService);
  const budgets = app.get(BudgetService);
  const calls = app.get(OnceService);
  const key = 'order:1';
  await locks.lock(() => locks.lock(() => 1, { key, timeoutMs: 0, reentrant: true }), { key });
  const held = await locks.acquire({ key, ttlMs: 30_000 });
  await locks.lock(() => 1, { key, timeoutMs: 5 }).catch(() => {});
  if (held.ok) await held.release();
  const steal = async (): Promise<void> => {
    const { lockId } = (await locks.getByKeyRaw(key)) as { lockId: string };
    await locks.release({ lockId });
  };
  await locks.lock(steal, { key }).catch(() => {});
  for (let i = 0; i < 3; i++) await limiter.check('203.0.113.7', 'api');
  for (let i = 0; i < 3; i++) await limiter.check('203.0.113.7', 'tried');
  await budgets.run(() => 1, { scopes: ['user:42'], amount: 7 });
  await budgets.run(() => 1, { scopes: ['user:42'], amount: 7 }).catch(() => {});
  for (let i = 0; i < 2; i++) await calls.run(() => 'done', { key: 'pay:1' });
  await calls.run(() => Promise.reject(new Error('no')), { key: 'pay:2' }).catch(() => {});
}
