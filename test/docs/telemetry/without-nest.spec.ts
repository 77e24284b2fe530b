// without-nest.spec.ts
import { createMemoryBackend, withTelemetry } from 'nestjs-syncguard';

it('tells of a backend and of its handles', async () => {
  const told: string[] = [];
  const locks = withTelemetry(createMemoryBackend(), {
    onEvent: ({ feature, type, result }) => void told.push(`${feature} ${type} ${result}`),
  });
  const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
  if (lock.ok) await lock.release();
  expect(told).toEqual(['lock acquire ok', 'lock release ok']);
});
