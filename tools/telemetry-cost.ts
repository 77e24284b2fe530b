// Measures what `instrument()` costs: `node -r ./test/support/run-ts.cjs tools/telemetry-cost.ts`. Calls go to the memory backend,
// so that the CPU is that of this package. Rounds of all variants alternate, and the lower quartile of each counts.
import 'reflect-metadata';
import { context, trace } from '@opentelemetry/api';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import { Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  AbuseLimiterService,
  BudgetService,
  LockService,
  OnceService,
  SyncGuardModule,
  type SyncGuardEvent,
} from '../lib/index.js';
import { instrument } from '../lib/opentelemetry.js';

const CALLS = Number(process.argv[2] ?? 2_000);
const ROUNDS = Number(process.argv[3] ?? 40);

Logger.overrideLogger(false);
const exporter = new InMemorySpanExporter();
const tracerProvider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
tracerProvider.register();
const meterProvider = new MeterProvider({ readers: [new PrometheusExporter({ preventServerStart: true })] });

type Listener = ((event: SyncGuardEvent) => void) | undefined;

async function appOf(onEvent: Listener) {
  const module = SyncGuardModule.forRoot({
    ...(onEvent && { telemetry: { onEvent } }),
    limits: { api: { limit: 2_000_000_000, windowMs: 60_000, algorithm: 'fixed-window' } },
    budget: { limits: [{ scope: 'org', period: 'lifetime', limit: 'unlimited' }], reaper: false },
  });
  const app = await NestFactory.createApplicationContext(module);
  const [locks, limiter] = [app.get(LockService), app.get(AbuseLimiterService)] as const;
  const [budgets, once] = [app.get(BudgetService), app.get(OnceService)] as const;
  let count = 0;
  const calls: Record<string, () => Promise<unknown>> = {
    'limiter.check()': () => limiter.check('203.0.113.7', 'api'),
    'locks.lock()': () => locks.lock(() => 1, { key: 'order:1' }),
    'budgets.run()': () => budgets.run(() => 1, { scopes: ['org'], amount: 1 }),
    'once.run()': () => once.run(() => 1, { key: `call:${count++}` }),
  };
  return { app, calls };
}

const lowerQuartile = (values: number[]): number =>
  values.sort((a, b) => a - b)[Math.floor(values.length / 4)] as number;

async function main(): Promise<void> {
  const metrics = instrument({ meterProvider });
  const variants = {
    'no listener': await appOf(undefined),
    'a listener': await appOf(() => {}),
    metrics: await appOf(metrics),
    'metrics and spans': await appOf(metrics),
  };
  const tracer = trace.getTracer('cost');
  const names = Object.keys(variants.metrics.calls);
  console.log('us of CPU for each call | ' + Object.keys(variants).join(' | '));
  for (const call of names) {
    const costs: Record<string, number[]> = {};
    for (let round = 0; round < ROUNDS; round++)
      for (const [variant, { calls }] of Object.entries(variants)) {
        const run = calls[call] as () => Promise<unknown>;
        const active = variant.endsWith('spans')
          ? trace.setSpan(context.active(), tracer.startSpan('call'))
          : context.active();
        await context.with(active, async () => {
          const before = process.cpuUsage();
          for (let i = 0; i < CALLS; i++) await run();
          const { user, system } = process.cpuUsage(before);
          (costs[variant] ??= []).push((user + system) / CALLS);
        });
        exporter.reset();
      }
    console.log([call, ...Object.values(costs).map((each) => lowerQuartile(each).toFixed(2))].join(' | '));
  }
  await Promise.all(Object.values(variants).map(({ app }) => app.close()));
}

void main();
