import type { Redis } from 'ioredis';
import { forgiveWindowScript, peekWindowScript } from '../../../lib/limit/redis/fixed-window.scripts.js';
import { resolvePolicy } from '../../../lib/limit/limit.policy.js';
import {
  blockScript,
  forgiveScript,
  resetScript,
  unblockScript,
  withdrawScript,
} from '../../../lib/limit/redis/identity.scripts.js';
import {
  checkScripts,
  type CheckShape,
  dynamicArgs,
  dynamicCheckScript,
  staticCheckScript,
} from '../../../lib/limit/redis/check.script.js';
import { peekScript } from '../../../lib/limit/redis/peek.script.js';
import type { ScriptExample } from './example.js';

// The first attempt is the one that blocks: a call that touches every key.
const { rules } = resolvePolicy({ name: 'login', temp: { windowMs: 60_000, threshold: 1, blockMs: 60_000 } });
const shape = { mode: 'attempt', rules } as const;
// The first success fills the tier, and sets the block.
const { rules: successRules } = resolvePolicy({
  name: 'signup',
  count: 'success',
  temp: { windowMs: 60_000, limit: 1, blockMs: 60_000 },
});
const windowShape = {
  mode: 'window',
  rules: resolvePolicy({ name: 'bulk', algorithm: 'fixed-window', limit: 50_000, windowMs: 60_000 }).rules,
} as const;
const lookShape = { mode: 'look', rules: { ...rules, shortThreshold: Infinity } } as const;
const keys = {
  attempts: 'syncguard/abuse_limiter:attempts:{tag}',
  block: 'syncguard/abuse_limiter:block:{tag}',
  penalties: 'syncguard/abuse_limiter:seq:{tag}',
  window: 'syncguard/abuse_limiter:window:{tag}',
};
const callId = 'callcall';

const prepare = async (client: Redis): Promise<void> => {
  await client.zadd(keys.attempts, Date.now(), 'earlier1', Date.now(), callId);
  await client.pexpire(keys.attempts, 60_000);
};
const prepareWindow = (client: Redis): Promise<unknown> =>
  client.set(keys.window, `3 ${Date.now() + 60_000} earlier1 `, 'PX', 60_000);
const prepareBlock = (client: Redis): Promise<unknown> =>
  client.set(keys.block, 'temp 5 5 60000', 'PX', 60_000);

/** One call against several limits. They are of one slot here, as on a Cluster a call has one limit only. */
function checkOf(shapes: readonly CheckShape[]): ScriptExample {
  const all: Record<string, string> = {};
  const args: Record<string, string | number> = { callId };
  shapes.forEach((each, i) => {
    for (const [name, key] of Object.entries(keys)) all[`${name}${i + 1}`] = `${key}:${i + 1}`;
    Object.assign(args, dynamicArgs(each, 1, i + 1));
  });
  return { script: dynamicCheckScript(shapes), keys: all, args };
}

export const limitExamples: ScriptExample[] = [
  ...checkScripts.map((_, i) => checkOf(Array<CheckShape>(i + 1).fill(shape))),
  checkOf([windowShape]),
  checkOf([windowShape, shape, windowShape]),
  checkOf([lookShape]),
  checkOf([shape, lookShape]),
  {
    script: staticCheckScript([shape]),
    keys: { attempts1: keys.attempts, block1: keys.block, penalties1: keys.penalties },
    args: { callId, cost1: 1 },
  },
  {
    script: staticCheckScript([{ ...shape, mode: 'enter' }]),
    keys: { attempts1: keys.attempts, block1: keys.block, penalties1: keys.penalties },
    args: { callId, cost1: 2 },
  },
  checkOf([{ mode: 'reserve', rules: successRules }, shape]),
  {
    script: staticCheckScript([{ mode: 'reserve', rules: successRules }]),
    keys: { attempts1: keys.attempts, block1: keys.block, penalties1: keys.penalties },
    args: { callId, cost1: 1 },
  },
  {
    script: staticCheckScript([{ mode: 'grant', rules: successRules }]),
    keys: { attempts1: keys.attempts, block1: keys.block, penalties1: keys.penalties },
    args: { callId, cost1: 1 },
  },
  {
    script: staticCheckScript([windowShape]),
    keys: { window1: keys.window, block1: keys.block },
    args: { callId, cost1: 2 },
    prepare: prepareWindow,
  },
  { script: peekScript, keys, args: { ...rules }, prepare },
  {
    script: withdrawScript,
    keys,
    args: { callId, cost: 1, forget: '1' },
    prepare,
    replaces: /:seq:/, // It forgets the penalties, whatever they are.
  },
  { script: forgiveScript, keys, args: { callId, count: 1, penaltiesTtlMs: 60_000 }, prepare },
  {
    script: peekWindowScript,
    keys,
    args: { shortThreshold: 5, shortWindowMs: 60_000 },
    prepare: prepareWindow,
  },
  { script: forgiveWindowScript, keys, args: { callId, amount: 1 }, prepare: prepareWindow },
  {
    script: resetScript,
    keys: { counted: keys.attempts, block: keys.block, penalties: keys.penalties },
    args: {},
    prepare,
    replaces: /./, // A reset deletes the keys, whatever they hold.
  },
  { script: blockScript, keys, args: { blockMs: 60_000, reason: 'spam%20bot' } },
  { script: unblockScript, keys, args: {}, prepare: prepareBlock },
] as ScriptExample[];
