import { Controller, Get, type INestApplication, Logger, Param, Post, Req } from '@nestjs/common';
import type { Span } from '@opentelemetry/api';
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import {
  minutes,
  Once,
  RateLimit,
  SyncGuardModule,
  type SyncGuardOptions,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { instrument } from 'nestjs-syncguard/opentelemetry';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { type Scraped, startScraped } from './scraped.js';

Logger.overrideLogger(false);

const exporter = new InMemorySpanExporter();
const tracerProvider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
const tracer = tracerProvider.getTracer('app');

const work = (): Promise<string> =>
  tracer.startActiveSpan('work', async (span) => {
    await new Promise(setImmediate);
    span.end();
    return 'done';
  });

@Controller()
class Routes {
  @Get('locked/:id')
  @WithLock((id: string) => `order:${id}`)
  locked(@Param('id') _id: string) {
    return work();
  }

  @Get('paid')
  @WithBudget({ scopes: () => ['user:42'], estimate: () => 7 })
  paid() {
    return work();
  }

  @Post('once')
  @Once({ key: () => 'call:1' })
  once() {
    return work();
  }

  @Get('limited')
  @RateLimit({ name: 'login', limit: 1, windowMs: minutes(1) })
  @RateLimit({ name: 'tried', limit: 1, windowMs: minutes(1), shadow: true })
  limited(@Req() _request: unknown) {
    return 'ok';
  }
}

/** A span for each request, as an instrumentation of HTTP makes it. It ends when the answer has been sent. */
function spanAround(
  _request: unknown,
  response: { once(event: string, end: () => void): void },
  next: () => void,
): void {
  tracer.startActiveSpan('server', (span: Span) => {
    response.once('close', () => span.end());
    next();
  });
}

const STORES: [string, () => Promise<SyncGuardOptions>][] = [
  ['memory', async () => ({})],
  ['Redis', async () => ({ redis: (await freshRedis()).client() })],
];

describe.each(['express', 'fastify'] as const)('instrument() on %s', (adapter) => {
  describe.each(STORES)('on %s', (_, open) => {
    let app: INestApplication;
    let url: string;
    let scraped: Scraped;

    beforeAll(async () => {
      tracerProvider.register();
      scraped = await startScraped();
      const module = SyncGuardModule.forRoot({
        ...(await open()),
        budget: { limits: [{ scope: 'user', period: 'lifetime', limit: 10 }], reaper: false },
        telemetry: { onEvent: instrument({ meterProvider: scraped.meterProvider }) },
      });
      const metadata = { imports: [module], controllers: [Routes] };
      ({ app, url } = await listen(adapter, metadata, undefined, (each) => each.use(spanAround)));
    });
    afterAll(async () => {
      await closeApp(app);
      await scraped.stop();
    });

    /** Each span of a request, as `name of its parent > name`. */
    async function treeOf(path: string, method = 'GET'): Promise<string[]> {
      exporter.reset();
      const response = await fetch(`${url}/${path}`, { method });
      await response.text();
      return eventually(() => {
        const all = exporter.getFinishedSpans();
        expect(all.map(({ name }) => name)).toContain('server');
        const names = new Map(all.map((span) => [span.spanContext().spanId, span.name]));
        return all
          .map(({ name, parentSpanContext: parent }) => `${parent ? names.get(parent.spanId) : ''} > ${name}`)
          .sort();
      });
    }

    it('makes spans beside those of the handler, under that of the request, and counts what was decided', async () => {
      const inside = [' > server', 'server > work'];
      const [wait, hold] = ['server > syncguard.lock.wait', 'server > syncguard.lock.hold'];
      expect(await treeOf('locked/1')).toEqual([...inside, wait, hold].sort());
      expect(await treeOf('paid')).toEqual([...inside, 'server > syncguard.budget.body'].sort());
      expect(await treeOf('once', 'POST')).toEqual([...inside, 'server > syncguard.once.body'].sort());
      expect(await treeOf('once', 'POST')).toEqual([' > server']);
      expect(await treeOf('limited')).toEqual([' > server']);

      await fetch(`${url}/limited`);
      const refused = await fetch(`${url}/paid`);
      expect(refused.ok).toBe(false);
      const samples = await scraped.scrape();
      const count = (name: string): number | undefined => samples.get(name);
      const decisions = (policy: string, result: string): number | undefined =>
        count(
          `syncguard_limit_decisions_total{syncguard_limit_policy="${policy}",syncguard_limit_result="${result}"}`,
        );
      expect([decisions('login', 'allowed'), decisions('login', 'denied')]).toEqual([1, 1]);
      expect(decisions('tried', 'shadow_allowed')).toBe(1);
      expect(count('syncguard_budget_spent_total{syncguard_budget_scope_type="user"}')).toBe(7);
      expect(count('syncguard_budget_refused_total{syncguard_budget_scope_type="user"}')).toBe(1);
      expect(count('syncguard_once_runs_total{syncguard_once_result="completed"}')).toBe(1);
      expect(count('syncguard_once_runs_total{syncguard_once_result="replayed"}')).toBe(1);
      expect(count('syncguard_lock_held_duration_count')).toBe(1);
    });
  });
});
