// metrics.spec.ts
import { Test } from '@nestjs/testing';
import { AbuseLimiterService, minutes, type SyncGuardEvent, SyncGuardModule } from 'nestjs-syncguard';

/** The part of OpenTelemetry's `Meter` that is used here. `metrics.getMeter('syncguard')` of '@opentelemetry/api' fits. */
interface Meter {
  createCounter(name: string): { add(value: number, labels: Labels): void };
  createHistogram(name: string, options: { unit: string }): { record(value: number, labels: Labels): void };
}
type Labels = Record<string, string>;

function toMetrics(meter: Meter): (event: SyncGuardEvent) => void {
  const operations = meter.createCounter('syncguard.operations');
  const duration = meter.createHistogram('syncguard.duration', { unit: 'ms' });
  return (event) => {
    const { feature, type, result, reason, code, durationMs } = event;
    operations.add(1, { feature, type, result, reason: reason ?? code ?? '' });
    // The deny cache answered. No backend was asked, so there is no duration of one.
    if ('fromDenyCache' in event) return;
    duration.record(durationMs, { feature, type });
  };
}

it('counts every operation by its outcome', async () => {
  const counts: Record<string, number> = {};
  const durations: number[] = [];
  const meter: Meter = {
    createCounter: () => ({
      add: (value, labels) => {
        const name = Object.values(labels).join(' ').trim();
        counts[name] = (counts[name] ?? 0) + value;
      },
    }),
    createHistogram: () => ({ record: (ms) => durations.push(ms) }),
  };
  const app = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot({ telemetry: { onEvent: toMetrics(meter) } })],
  }).compile();

  const limiter = app.get(AbuseLimiterService);
  const policy = { name: 'export', limit: 1, windowMs: minutes(1) };
  for (let call = 0; call < 3; call++) await limiter.check('ann', policy);
  expect(counts).toEqual({ 'limit check ok': 1, 'limit check fail temp': 2 });
  expect(durations).toHaveLength(3);
  await app.close();
});
