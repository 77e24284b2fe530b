// opentelemetry.spec.ts
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Test } from '@nestjs/testing';
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { AbuseLimiterService, minutes, SyncGuardModule } from 'nestjs-syncguard';
import { instrument } from 'nestjs-syncguard/opentelemetry';

it('is scraped by Prometheus', async () => {
  // In an app: `new PrometheusExporter()` listens on port 9464. A provider that is registered needs not to be passed.
  const exporter = new PrometheusExporter({ preventServerStart: true, withoutScopeInfo: true });
  const meterProvider = new MeterProvider({ readers: [exporter] });
  const app = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot({ telemetry: { onEvent: instrument({ meterProvider }) } })],
  }).compile();

  const limiter = app.get(AbuseLimiterService);
  const policy = { name: 'export', limit: 1, windowMs: minutes(1) };
  for (let call = 0; call < 3; call++) await limiter.check('ann', policy);

  const server = createServer((request, response) => exporter.getMetricsRequestHandler(request, response));
  await new Promise<void>((resolve) => void server.listen(0, resolve));
  const { port } = server.address() as AddressInfo;
  const scraped = await (await fetch(`http://localhost:${port}/metrics`)).text();
  expect(scraped).toContain(
    'syncguard_limit_decisions_total{syncguard_limit_policy="export",syncguard_limit_result="denied"} 2',
  );

  server.closeAllConnections();
  server.close();
  await meterProvider.shutdown();
  await app.close();
});
