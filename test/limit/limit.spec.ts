import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { onEachClient } from '../support/on-each-client.js';
import { describeLimitBackend, type LimitHarness } from './limit.contract.js';

describeLimitBackend('memory', async () => {
  let nowMs = Date.now();
  return { backend: new MemoryLimitBackend({ now: () => nowMs }), advance: (ms) => (nowMs += ms) };
});

onEachClient(describeLimitBackend, (client, { clock }): LimitHarness => {
  clock.hold();
  return {
    backend: new RedisLimitBackend(new ScriptRunner(client, 10_000), 'test'),
    advance: (ms) => clock.advance(ms),
  };
});
