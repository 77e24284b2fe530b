import type { Redis } from 'ioredis';
import {
  incrementScript,
  peekCounterScript,
  resetCounterScript,
} from '../../../lib/counter/redis/counter.scripts.js';
import type { ScriptExample } from './example.js';

const keys = { counter: 'syncguard/counter:{t}' };

const prepare = async (client: Redis): Promise<void> => {
  await client.hset(keys.counter, { count: '1', endsAt: String(Date.now() + 60_000), last: 'a call' });
  await client.pexpire(keys.counter, 60_000);
};

/** The window has ended by the server's clock, and its key is still there. */
const prepareEnded = async (client: Redis): Promise<void> => {
  await prepare(client);
  await client.hset(keys.counter, 'endsAt', '1');
};
const args = { callId: 'C'.repeat(22), remember: 1, max: 5, cost: 1, windowMs: 60_000 };

export const counterExamples: ScriptExample[] = [
  { script: incrementScript, keys, args, prepare },
  { script: incrementScript, keys, args },
  { script: incrementScript, keys, args, prepare: prepareEnded },
  { script: peekCounterScript, keys, args: {}, prepare },
  // The reply is how many keys it deleted, which nobody reads.
  { script: resetCounterScript, keys, args: {}, prepare, again: [0] },
];
