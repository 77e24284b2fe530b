import type { Redis } from 'ioredis';
import { resolvePolicy } from '../../../lib/limit/limit.policy.js';
import {
  blockScript,
  checkScripts,
  dynamicArgs,
  fixedCheckScript,
  forgiveScript,
  peekScript,
  resetScript,
  unblockScript,
  withdrawScript,
} from '../../../lib/limit/limit.scripts.js';
import type { ScriptExample } from './example.js';

// The first attempt is the one that blocks: a call that touches every key.
const { rules } = resolvePolicy({ name: 'login', temp: { windowMs: 60_000, threshold: 1, blockMs: 60_000 } });
const shape = { stage: 'attempt', rules } as const;
const keys = {
  attempts: 'syncguard/abuse_limiter:attempts:{tag}',
  block: 'syncguard/abuse_limiter:block:{tag}',
  seq: 'syncguard/abuse_limiter:seq:{tag}',
};
const callId = 'callcall';

const prepare = async (client: Redis): Promise<void> => {
  await client.zadd(keys.attempts, Date.now(), 'earlier1', Date.now(), callId);
  await client.pexpire(keys.attempts, 60_000);
};
const prepareBlock = (client: Redis): Promise<unknown> =>
  client.set(keys.block, 'temp 5 5 60000', 'PX', 60_000);

/** One call against so many limits. They are of one slot here, as on a Cluster a call has one limit only. */
function checkOf(count: number): ScriptExample {
  const all: Record<string, string> = {};
  const args: Record<string, string | number> = { callId };
  for (let n = 1; n <= count; n++) {
    for (const [name, key] of Object.entries(keys)) all[`${name}${n}`] = `${key}:${n}`;
    Object.assign(args, dynamicArgs(shape, 1, n));
  }
  return { script: checkScripts[count - 1] as ScriptExample['script'], keys: all, args };
}

export const limitExamples: ScriptExample[] = [
  ...checkScripts.map((_, i) => checkOf(i + 1)),
  {
    script: fixedCheckScript([shape]),
    keys: { attempts1: keys.attempts, block1: keys.block, seq1: keys.seq },
    args: { callId, cost1: 1 },
  },
  {
    script: fixedCheckScript([{ ...shape, stage: 'enter' }]),
    keys: { attempts1: keys.attempts, block1: keys.block, seq1: keys.seq },
    args: { callId, cost1: 2 },
  },
  { script: peekScript, keys, args: { ...rules }, prepare },
  { script: withdrawScript, keys, args: { callId, cost: 1, forget: '1' }, prepare },
  { script: forgiveScript, keys, args: { callId, count: 1, recordTtlMs: 60_000 }, prepare },
  { script: resetScript, keys, args: {}, prepare },
  { script: blockScript, keys, args: { blockMs: 60_000, reason: 'spam%20bot' } },
  { script: unblockScript, keys, args: {}, prepare: prepareBlock },
] as ScriptExample[];
