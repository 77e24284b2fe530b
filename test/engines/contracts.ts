import { createRedisBackend } from 'nestjs-syncguard';
import { RedisBudgetBackend } from '../../lib/budget/redis/budget.redis-backend.js';
import { RedisCounterBackend } from '../../lib/counter/redis/counter.redis-backend.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { RedisSecretBackend } from '../../lib/secret/redis/secret.redis-backend.js';
import { describeBudgetContract } from '../budget/budget.contract.js';
import { describeCounters } from '../counter/counter.contract.js';
import { describeLimitBackend } from '../limit/limit.contract.js';
import { describeLockBackend } from '../lock/lock.contract.js';
import { describeSecrets } from '../secret/secret.contract.js';
import type { Engine } from '../support/engines/engine.js';
import { heldClock } from '../support/server-clock.js';

const COMMAND_TIMEOUT_MS = 10_000;
const START_MS = 60_000;
const keyPrefix = 'test';

/** Every key and value: each of ours that holds text is a hash. */
async function contentsOf(engine: Engine): Promise<string> {
  const lines: string[] = [];
  for (const server of await engine.primaries()) {
    const client = server.client();
    for (const key of await client.keys('*'))
      lines.push(`${key} ${JSON.stringify(await client.hgetall(key))}\n`);
  }
  return lines.join('');
}

/** What every backend promises, on an engine of its own that starts before and stops after. */
export function describeContracts(name: string, start: () => Promise<Engine>): void {
  describe(name, () => {
    let engine: Engine;
    beforeAll(async () => {
      engine = await start();
    }, START_MS);
    afterAll(() => engine.stop());

    /** Empty, at real time, without the clients of the test before. */
    async function fresh(): Promise<Engine> {
      engine.closeClients();
      engine.clock.reset();
      await engine.flush();
      return engine;
    }
    const runner = (): ScriptRunner => new ScriptRunner(engine.client(), COMMAND_TIMEOUT_MS);
    const advance = (ms: number): void => engine.clock.advance(ms);

    describeLockBackend(name, async () => {
      const { client } = await fresh();
      return { backend: createRedisBackend(client(), { commandTimeoutMs: COMMAND_TIMEOUT_MS }), advance };
    });

    describeLimitBackend(name, async () => {
      const { clock } = await fresh();
      clock.hold();
      return { backend: new RedisLimitBackend(runner(), keyPrefix), advance };
    });

    describeCounters(name, async () => {
      await fresh();
      return { backend: new RedisCounterBackend(runner(), { keyPrefix }), advance };
    });

    describeBudgetContract(name, async () => {
      const { clock } = await fresh();
      const backend = () => new RedisBudgetBackend(runner(), { keyPrefix, retentionMs: 900_000 });
      return { clock: heldClock(clock), backend };
    });

    describeSecrets(name, async () => {
      await fresh();
      return {
        backend: () => new RedisSecretBackend(runner(), keyPrefix),
        advance,
        contents: () => contentsOf(engine),
      };
    });
  });
}
