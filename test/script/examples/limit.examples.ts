import type { Redis } from 'ioredis';
import { MAX_CHECKS } from '../../../lib/limit/limit.backend.js';
import { resolvePolicy } from '../../../lib/limit/limit.policy.js';
import {
  blockScript,
  forgiveScript,
  resetScript,
  renewScript,
  unblockScript,
  withdrawScript,
} from '../../../lib/limit/redis/limit.scripts.js';
import {
  blockedScript,
  liftScript,
  notedScript,
  noteScript,
  whoseScript,
} from '../../../lib/limit/redis/blocked.scripts.js';
import { checkScript, type CheckShape, numbersOf } from '../../../lib/limit/redis/check.script.js';
import type { ScriptExample } from './example.js';

// The first attempt is the one that blocks: a call that touches every key.
const { rules } = resolvePolicy({ name: 'login', temp: { windowMs: 60_000, threshold: 1, blockMs: 60_000 } });
const shape = { mode: 'attempt', rules } as const;
const tier = { windowMs: 60_000, threshold: 1, blockMs: 60_000 };
const longShape = {
  mode: 'attempt',
  rules: resolvePolicy({ name: 'login', temp: tier, long: { ...tier, windowMs: 600_000 } }).rules,
} as const;
// The first success fills the tier, and sets the block.
const { rules: successRules } = resolvePolicy({
  name: 'signup',
  count: 'success',
  temp: { windowMs: 60_000, limit: 1, blockMs: 60_000 },
});
const reserveShape = { mode: 'reserve', rules: successRules } as const;
const windowShape = {
  mode: 'window',
  rules: resolvePolicy({ name: 'bulk', algorithm: 'fixed-window', limit: 50_000, windowMs: 60_000 }).rules,
} as const;
const blockingWindow = {
  mode: 'window',
  rules: resolvePolicy({
    name: 'bulk',
    algorithm: 'fixed-window',
    limit: 3,
    windowMs: 60_000,
    blockMs: 60_000,
  }).rules,
} as const;
const lookShape = {
  mode: 'look',
  rules: { ...rules, tiers: [{ ...rules.tiers[0], threshold: Infinity }] },
} as const;
const keys = {
  attempts: 'syncguard/abuse_limiter:attempts:{tag}',
  block: 'syncguard/abuse_limiter:block:{tag}',
  penalties: 'syncguard/abuse_limiter:seq:{tag}',
  window: 'syncguard/abuse_limiter:fixed:{tag}',
  whose: 'syncguard/abuse_limiter:whose:{tag}',
};
const noted = 'syncguard/abuse_limiter:noted:{tag}';
const callId = 'callcall';

/** A fixed window has no ids: a call that is sent again counts again. */
const recounts = /:fixed:/;

/** What a script says about what it has found is no more than that: it works without, and a second run finds less. */
const looks = (replaces: RegExp): Partial<ScriptExample> => ({
  replaces,
  tolerates: /^(ZCOUNT|GET)$/,
  again: [0],
});

const prepare = async (client: Redis): Promise<void> => {
  await client.zadd(keys.attempts, Date.now(), 'earlier1', Date.now(), callId);
  await client.pexpire(keys.attempts, 60_000);
};
/** Attempts and a call in flight that have left all windows. */
const prepareOld = async (client: Redis): Promise<void> => {
  const oldMs = Date.now() - 7_200_000;
  await client.zadd(keys.attempts, oldMs, 'old', -oldMs, 'lapsed');
  await client.pexpire(keys.attempts, 60_000);
};
const prepareFlight = async (client: Redis): Promise<void> => {
  await client.zadd(keys.attempts, -Date.now(), callId);
  await client.pexpire(keys.attempts, 60_000);
};
const prepareWindow = (client: Redis): Promise<unknown> => client.set(keys.window, 3, 'PX', 60_000);
const prepareBlockedWindow = (client: Redis): Promise<unknown> =>
  client.set(
    keys.window,
    `manual 0 0 60000 spam ${Date.now() + 60_000} ${Date.now() + 60_000} 3`,
    'PX',
    60_000,
  );
const prepareBlock = (client: Redis): Promise<unknown> =>
  client.set(keys.block, 'temp 5 5 60000', 'PX', 60_000);

/** One call against several limits. They are of one slot here, as on a Cluster a call has one limit only. */
function checkOf(shapes: readonly CheckShape[], isStatic = false, cost = 1): ScriptExample {
  const all: Record<string, string> = {};
  const args: Record<string, string | number> = { callId };
  for (const [i, each] of shapes.entries()) {
    const n = i + 1;
    for (const [name, key] of Object.entries(keys)) all[name + String(n)] = n === 1 ? key : `${key}:${n}`;
    for (const [name, value] of Object.entries({ cost, ...numbersOf(each) })) args[name + String(n)] = value;
  }
  return { script: checkScript(shapes, isStatic), keys: all, args };
}

export const limitExamples: ScriptExample[] = [
  ...Array.from({ length: MAX_CHECKS }, (_, i) => checkOf(Array<CheckShape>(i + 1).fill(shape))),
  checkOf([{ ...shape, mode: 'enter' }]),
  checkOf([{ ...shape, mode: 'confirm' }]),
  { ...checkOf([{ ...shape, mode: 'enter' }]), prepare: prepareOld },
  ...(['reserve', 'grant'] as const).map((mode) => ({
    ...checkOf([{ ...reserveShape, mode }]),
    prepare: prepareOld,
  })),
  checkOf([{ ...shape, mode: 'fill' }]),
  checkOf([reserveShape]),
  checkOf([{ ...reserveShape, mode: 'grant' }]),
  { ...checkOf([windowShape]), recounts },
  { ...checkOf([windowShape, shape, windowShape]), recounts },
  { ...checkOf([windowShape]), prepare: prepareBlockedWindow, tolerates: /INCRBY/ },
  { ...checkOf([{ ...windowShape, mode: 'raised' }]), recounts },
  { ...checkOf([blockingWindow]), prepare: prepareWindow, tolerates: /INCRBY/ },
  { ...checkOf([blockingWindow, shape]), prepare: prepareWindow, tolerates: /INCRBY/ },
  checkOf([{ ...windowShape, mode: 'look-window' }]),
  checkOf([lookShape]),
  checkOf([shape, lookShape]),
  checkOf([reserveShape, shape]),
  checkOf([shape], true),
  ...(['attempt', 'enter', 'confirm', 'reserve', 'grant', 'fill', 'peek'] as const).map((mode) =>
    checkOf([{ ...longShape, mode }]),
  ),
  checkOf([longShape, shape], true),
  checkOf([{ ...shape, mode: 'enter' }], true, 2),
  checkOf([{ ...shape, mode: 'confirm' }], true, 2),
  checkOf([reserveShape], true),
  checkOf([{ ...reserveShape, mode: 'grant' }], true),
  { ...checkOf([windowShape], true, 2), prepare: prepareWindow, recounts },
  { ...checkOf([windowShape], true, 49_998), prepare: prepareWindow, tolerates: /INCRBY/ },
  checkOf([lookShape], true),
  { ...checkOf([windowShape, lookShape, { ...shape, mode: 'enter' }, reserveShape], true), recounts },
  { ...checkOf([{ ...shape, mode: 'peek' }]), prepare },
  { ...checkOf([{ ...windowShape, mode: 'peek-window' }]), prepare: prepareWindow },
  {
    script: withdrawScript,
    keys,
    args: { callId, cost: 1, forget: '1' },
    prepare,
  },
  { script: renewScript, keys, args: { callId, cost: 1, keepMs: 60_000 }, prepare: prepareFlight },
  ...[prepare, prepareWindow, prepareBlockedWindow].map((found) => ({
    script: forgiveScript,
    keys,
    args: { callId, amount: 1, shortWindowMs: 60_000, penaltiesTtlMs: 60_000, endsInMs: 60_000 },
    prepare: found,
    ...looks(/:block:/),
    again: [found === prepareBlockedWindow ? 1 : 0],
  })),
  {
    script: resetScript,
    keys,
    args: { shortWindowMs: 60_000 },
    prepare,
    ...looks(/./), // A reset deletes the keys, whatever they hold.
  },
  {
    script: blockScript,
    keys,
    args: { isWindow: '0', blockMs: 60_000, reason: 'spam%20bot', shortWindowMs: 60_000 },
  },
  {
    script: blockScript,
    keys,
    args: { isWindow: '1', blockMs: 60_000, reason: 'spam%20bot', shortWindowMs: 60_000 },
    prepare: prepareWindow,
  },
  ...[prepareBlock, prepareBlockedWindow].map((found) => ({
    script: unblockScript,
    keys,
    args: { shortWindowMs: 60_000 },
    prepare: found,
    ...looks(/:(attempts|whose):/),
  })),
  { script: whoseScript, keys, args: { owner: 'a422dabee27fcc7ad506f372 login', blockMs: 60_000 } },
  ...[prepareBlock, prepareBlockedWindow].map((found) => ({
    script: blockedScript,
    keys,
    args: {},
    prepare: found,
  })),
  { script: noteScript, keys: { noted }, args: { tag: 'tag', blockMs: 60_000 } },
  {
    script: notedScript,
    keys: { noted },
    args: {},
    prepare: async (client) => {
      await client.zadd(noted, Date.now() + 60_000, 'tag');
      await client.pexpire(noted, 60_000);
    },
  },
  {
    script: liftScript,
    keys,
    args: {},
    prepare: prepareBlock,
    replaces: /:(attempts|seq|fixed|whose):/, // It deletes what stands beside a block of ours.
    again: [0],
  },
] as ScriptExample[];
