import type { Redis } from 'ioredis';
import { calculateRedisServerTimeMs } from '../../../lib/core/clock.js';
import { abortScript, extendScript } from '../../../lib/budget/redis/hold.scripts.js';
import {
  balanceScript,
  getScript,
  pageScript,
  snapshotScript,
} from '../../../lib/budget/redis/read.scripts.js';
import { chargeScript } from '../../../lib/budget/redis/charge.script.js';
import { creditScript, refundScript, setLimitScript } from '../../../lib/budget/redis/adjust.scripts.js';
import { finalizeScript } from '../../../lib/budget/redis/finalize.script.js';
import { reaperScript, rootsScript } from '../../../lib/budget/redis/reaper.scripts.js';
import { parseSnapshot } from '../../../lib/budget/redis/budget.snapshot.js';
import { repairScript } from '../../../lib/budget/redis/repair.script.js';
import { reserveScript } from '../../../lib/budget/redis/reserve.script.js';
import { verifySnapshot } from '../../../lib/budget/budget.verify.js';
import type { ScriptExample } from './example.js';

const [counters, records, pending, garbage] = ['b', 'h', 'x', 'g'].map(
  (name) => `syncguard/budget:{default}:${name}`,
) as [string, string, string, string];
const root = { counters, records, pending, garbage };
const keys = {
  ...root,
  idKey: 'syncguard/budget:{default}:id:o',
  refundKey: 'syncguard/budget:{default}:id:r',
};
const retentionMs = 900_000;

/** Until then roots are taken, far in the future. */
const UNTIL_MS = 9_000_000_000_000;
const HOUR_MS = 3_600_000;
const LENGTH_MS = 1_000 * HOUR_MS;
const startMs = Date.now() - (Date.now() % LENGTH_MS);
const endMs = startMs + LENGTH_MS;
const period = `window:${LENGTH_MS}`;
const entries = {
  fields: `c|user:1|${period}|${startMs};c|org|${period}|${startMs}`,
  limits: '100;u',
  thresholds: '50,80;-',
  ends: `${endMs};${endMs}`,
  inherited: '1;0',
  openFromMs: startMs,
  openUntilMs: endMs,
  lastEndMs: endMs,
};

/** The entries of one scope. */
const one = {
  ...entries,
  fields: `c|user:1|${period}|${startMs}`,
  limits: '100',
  thresholds: '50,80',
  ends: `${endMs}`,
  inherited: '1',
};

const { fields, limits, thresholds, ends, inherited } = entries;
const fixed = ['n0', endMs, fields, limits, thresholds, ends, inherited, '{"a":"b c"}'].join(' ');
const record = (state: string, amount: number, committed: number, expiresAtMs: number): string =>
  [
    1,
    state,
    'h',
    1,
    amount,
    committed,
    committed,
    0,
    0,
    0,
    startMs,
    expiresAtMs,
    state === 'p' ? 0 : startMs,
    '-',
    fixed,
  ].join(' ');

/** A pending hold, a finalized one, and an expired one. All of them end in `lifeMs`. */
async function write(client: Redis, lifeMs: number): Promise<void> {
  // The server's clock may stand still: a hold that expires by another one has not expired there yet.
  const nowMs = calculateRedisServerTimeMs((await client.time()) as [number, number]);
  const goneMs = nowMs + lifeMs;
  for (const field of fields.split(';')) await client.hset(counters, field, '1 20 17 0 0 0');
  await client.hset(counters, '~', goneMs);
  await client.hset(records, {
    '~': '',
    'o|held': record('p', 10, 0, nowMs + HOUR_MS),
    'o|over': record('p', 7, 0, nowMs),
  });
  await client.hset(records, { 'o|spent': record('f', 30, 20, nowMs) });
  await client.zadd(pending, '+inf', '', nowMs + HOUR_MS, 'held', nowMs, 'over');
  await client.zadd(garbage, '+inf', '', 1, 'o|spent');
  for (const key of Object.values(root)) await client.pexpireat(key, goneMs);
}

const prepare = (client: Redis): Promise<void> => write(client, 10_000 * HOUR_MS);
/** The keys end before the next operation does, which has to set their end anew. */
const prepareEnding = (client: Redis): Promise<void> => write(client, 60_000);

/** The same scopes without an end. */
const lifetime = {
  ...entries,
  fields: 'c|user:1|lifetime|0;c|org|lifetime|0',
  ends: '0;0',
  openFromMs: 0,
  openUntilMs: 0,
  lastEndMs: 0,
};

/** The sums are those of the operations, and each pending hold is where it expires. */
async function stays(client: Redis): Promise<unknown> {
  const names = [counters, records, pending, garbage];
  const [, ...reply] = (await client.eval(snapshotScript.lua, names.length, ...names)) as string[];
  return verifySnapshot(parseSnapshot(reply));
}

const immortal = /budget.*:[bhxg]$/;
const ref = { generation: 1, nonce: 'n0' };

const examples: ScriptExample[] = [
  {
    script: reserveScript,
    again: ['replayed'],
    keys,
    args: {
      id: 'new',
      amount: '40',
      ttlMs: 60_000,
      meta: '{"a":"b c"}',
      mode: 'run',
      nonce: 'n1',
      retentionMs,
      ...entries,
    },
  },
  {
    script: reserveScript,
    again: ['replayed'],
    keys,
    args: {
      id: 'over',
      amount: '40',
      ttlMs: 60_000,
      meta: '',
      mode: 'renew',
      nonce: 'n2',
      retentionMs,
      ...entries,
    },
    prepare,
  },
  {
    script: chargeScript,
    again: ['replayed'],
    keys,
    args: { id: 'new', amount: '40', mode: 'enforce', idTtlMs: 86_400_000, retentionMs, ...entries },
    prepare,
  },
  {
    script: finalizeScript,
    again: ['replayed'],
    keys,
    args: {
      ...ref,
      id: 'held',
      actual: '12',
      overage: 'cap',
      late: 'record',
      idTtlMs: 86_400_000,
      retentionMs,
    },
    prepare,
    // The id was reserved, so what it leaves behind is its own.
    replaces: /:id:/,
  },
  {
    script: chargeScript,
    again: ['replayed'],
    keys,
    args: { id: 'new', amount: '40', mode: 'record', idTtlMs: 86_400_000, retentionMs, ...entries },
    prepare: prepareEnding,
  },
  {
    script: chargeScript,
    again: ['replayed'],
    keys,
    args: { id: 'new', amount: '40', mode: 'enforce', idTtlMs: 86_400_000, retentionMs, ...lifetime },
    prepare,
    immortal,
  },
  {
    script: reserveScript,
    again: ['replayed'],
    keys,
    args: {
      id: 'new',
      amount: '40',
      ttlMs: 60_000,
      meta: '',
      mode: 'run',
      nonce: 'n1',
      retentionMs,
      ...lifetime,
    },
    immortal,
  },
  {
    script: finalizeScript,
    again: ['replayed'],
    keys,
    args: {
      ...ref,
      id: 'held',
      actual: '12',
      overage: 'cap',
      late: 'record',
      idTtlMs: 86_400_000,
      retentionMs,
    },
    prepare: prepareEnding,
    replaces: /:id:/,
  },
  {
    script: abortScript,
    again: ['replayed'],
    keys,
    args: { ...ref, id: 'held', retentionMs },
    prepare: prepareEnding,
  },
  {
    script: extendScript,
    keys,
    args: { ...ref, id: 'held', ttlMs: 7_200_000, retentionMs },
    prepare: prepareEnding,
  },
  {
    script: refundScript,
    again: ['replayed'],
    keys,
    args: { ...ref, id: 'spent', amount: '5', retentionMs },
    prepare: prepareEnding,
    replaces: /:id:o/,
  },
  {
    script: creditScript,
    again: ['replayed'],
    keys,
    args: { amount: '5', retentionMs, ...one },
    prepare: prepareEnding,
  },
  { script: abortScript, again: ['replayed'], keys, args: { ...ref, id: 'held', retentionMs }, prepare },
  { script: extendScript, keys, args: { ...ref, id: 'held', ttlMs: 60_000, retentionMs }, prepare },
  {
    script: refundScript,
    again: ['replayed'],
    keys,
    args: { ...ref, id: 'spent', amount: '5', retentionMs },
    prepare,
    replaces: /:id:o/,
  },
  {
    script: creditScript,
    again: ['replayed'],
    keys,
    args: { amount: '5', retentionMs, ...one },
    prepare,
  },
  // A limit of setLimit lasts until it is cleared, so the root no longer ends.
  {
    script: setLimitScript,
    keys,
    args: { scope: 'user:1', period, field: one.fields.slice(2), limit: '7', retentionMs },
    prepare,
    immortal,
  },
  {
    script: setLimitScript,
    keys,
    args: { scope: 'user:1', period, field: one.fields.slice(2), limit: '-', retentionMs },
    prepare: (client: Redis) => client.hset(counters, 'l|user:1', `${period}=7`, '~', 'never l'),
    immortal,
  },
  { script: balanceScript, keys, args: { retentionMs, ...entries }, prepare },
  { script: getScript, keys, args: { ...ref, id: 'held' }, prepare },
  { script: pageScript, keys, args: { pattern: '[oO]|*', cursor: '0', limit: 10 }, prepare },
  { script: pageScript, keys, args: { pattern: 'c|*', cursor: '0', limit: 10 }, prepare },
  // An expired hold is reported once.
  { script: reaperScript, keys, args: { max: 10, retentionMs }, prepare, again: ['reaped', '0'] },
  { script: snapshotScript, keys, args: { retentionMs }, prepare },
  { script: repairScript, keys, args: { retentionMs }, prepare },
  {
    script: rootsScript,
    keys: { registry: 'syncguard/budget-roots' },
    // A root is taken once.
    again: [expect.stringMatching(/^\d+$/)],
    args: {
      ...{ used: 'mine other%20one', reaped: `empty=${UNTIL_MS}= later=${UNTIL_MS}=90000 used=${UNTIL_MS}=` },
      ...{ max: 10, everyMs: 30_000 },
    },
    prepare: async (client) => {
      const registry = 'syncguard/budget-roots';
      await client.zadd(registry, 9, 'due', UNTIL_MS, 'empty', UNTIL_MS, 'later', UNTIL_MS - 1, 'used');
      await client.pexpire(registry, HOUR_MS);
    },
  },
];

export const budgetExamples = examples.map((example) => ({ ...example, stays }));
