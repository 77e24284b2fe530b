// without-nest.spec.ts
import { createMemoryBackend, withTelemetry } from 'nestjs-syncguard';

it('reports operations of a backend and of its handles', async () => {
  const events: string[] = [];
  const locks = withTelemetry(createMemoryBackend(), {
    onEvent: ({ feature, type, result }) => void events.push(`${feature} ${type} ${result}`),
  });
  const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
  if (lock.ok) await lock.release();
  expect(events).toEqual(['lock acquire ok', 'lock release ok']);
});
