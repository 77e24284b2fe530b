import { MemoryOnceBackend } from '../../lib/once/memory/once.memory-backend.js';
import { onceOn } from '../support/redis-backends.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { onEachClient } from '../support/on-each-client.js';
import { describeOnce } from './once.contract.js';
import type { OnceUnderTest } from './support.js';

describeOnce('memory', async () => {
  let offsetMs = 0;
  const backend = new MemoryOnceBackend({ now: () => Date.now() + offsetMs });
  return {
    backend: () => backend,
    advance: (ms) => (offsetMs += ms),
    contents: async () =>
      [...backend['entries']].map(([key, { kept }]) => `${key} ${kept?.bytes.toString()}\n`).join(''),
  };
});

onEachClient(describeOnce, (client, server): OnceUnderTest => {
  const admin = server.client();
  const runner = new ScriptRunner(client, 10_000);
  return {
    backend: () => onceOn(runner, 'syncguard'),
    advance: (ms) => server.clock.advance(ms),
    contents: async () => {
      const keys = await admin.keys('*');
      return (await Promise.all(keys.map((key) => admin.get(key)))).join('\n');
    },
  };
});
