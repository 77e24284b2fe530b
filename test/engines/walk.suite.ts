import { createRedisBackend } from 'nestjs-syncguard';
import { allOf } from '../lock/lock-operations.contract.js';
import { startRedisServer } from '../support/redis-server.js';

const LOCKS = 100_000;

describe('a walk over 100,000 locks', () => {
  it('shows each of them, and takes as long as 5,000 keys a second take', async () => {
    const server = await startRedisServer();
    const client = server.client();
    const nowMs = Date.now();
    const record = (key: string): string =>
      JSON.stringify({
        ...{ lockId: 'A'.repeat(22), expiresAtMs: nowMs + 600_000, acquiredAtMs: nowMs },
        ...{ key, fence: '000000000000001' },
      });
    for (let i = 0; i < LOCKS; i += 1_000)
      await client.mset(
        Array.from({ length: 1_000 }, (_, n) => [
          `syncguard:order:${i + n}`,
          record(`order:${i + n}`),
        ]).flat(),
      );
    const startMs = performance.now();
    const found = await allOf(createRedisBackend(client, { commandTimeoutMs: 10_000 }), { limit: 1_000 });
    const elapsedMs = performance.now() - startMs;
    console.log(`${LOCKS} locks were walked in ${Math.round(elapsedMs)} ms.`);
    expect(new Set(found.map(({ key }) => key)).size).toBe(LOCKS);
    expect(elapsedMs).toBeGreaterThan((LOCKS / 5_000) * 1_000 - 1_000);
    await server.stop();
  }, 300_000);
});
