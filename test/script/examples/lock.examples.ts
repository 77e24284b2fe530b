import type { Redis } from 'ioredis';
import { acquireKeysFor } from '../../../lib/lock/redis/acquire-keys.script.js';
import { acquireScript } from '../../../lib/lock/redis/acquire.script.js';
import { extendFor } from '../../../lib/lock/redis/extend.script.js';
import {
  cleanupScript,
  extendByIdScript,
  queueScript,
  readIndexScript,
  readScript,
  releaseByIdScript,
} from '../../../lib/lock/redis/lock.by-id.scripts.js';
import { handOnScript } from '../../../lib/lock/redis/hand-on.scripts.js';
import { publishScript } from '../../../lib/script/publish.script.js';
import { releaseFor, releaseSeenFor } from '../../../lib/lock/redis/release.script.js';
import type { ScriptExample } from './example.js';

const lockId = 'abcdefghijklmnopqrstuv';
const record = 'syncguard:{t}:order';
const index = `syncguard:{t}:id:${lockId}`;
const mark = `syncguard/{t}:released:${lockId}`;
const nonce = 'nonce';
const fenceCounter = `syncguard:{t}:fence:${record}`;
const immortal = /:fence:/;
// Their names contain a lock id, which is random: no other program has a key of that name.
const replaces = /:(id|released):/;
const undeclared = new RegExp(`^${record}$`);

const hold =
  (expiresInMs: number) =>
  async (client: Redis, prefix: string): Promise<void> => {
    const nowMs = Date.now();
    const fields = {
      lockId,
      expiresAtMs: nowMs + expiresInMs,
      acquiredAtMs: nowMs,
      key: 'order',
      fence,
    };
    await client.set(record, JSON.stringify(fields), 'PX', 60_000);
    await client.set(index, prefix + record, 'PX', 60_000);
  };
const prepare = hold(30_000);

const queue = 'syncguard/{t}:queue:order';
const fence = '000000000000007';
const names = { fenceCounter, record, queue, index };
const second = {
  'fenceCounter:2': 'syncguard:{t}:fence:syncguard:{t}:other',
  'record:2': 'syncguard:{t}:other',
  'queue:2': 'syncguard/{t}:queue:other',
};
const channel = 'syncguard/wake:';
const handing = { channel, countsAll: '', keyJson: '"order"' };
const process = 'pppppppppppppppp';
const waiter = `wwwwwwwwwwwwwwwwwwwwww${process}`;
const another = 'xxxxxxxxxxxxxxxxxxxxxx';

/** Somebody waits behind whoever holds it. */
const contended = async (client: Redis, prefix: string): Promise<void> => {
  await prepare(client, prefix);
  await client.append(record, ' ');
  await client.zadd(queue, 7, waiter);
  await client.pexpire(queue, 60_000);
};
const abandoned = async (client: Redis, prefix: string): Promise<void> => {
  await contended(client, prefix);
  await client.del(record, index);
};
/** The waiter has missed its claim, so its process is passed over. */
const passedOver = async (client: Redis, prefix: string): Promise<void> => {
  await abandoned(client, prefix);
  await client.zadd(queue, -Date.now(), process);
};
/** The lock is handed to the waiter. */
const claimed = async (client: Redis, prefix: string): Promise<void> => {
  await passedOver(client, prefix);
  const fields = { lockId: waiter.slice(0, 22), expiresAtMs: Date.now() + 500, acquiredAtMs: Date.now() };
  await client.set(record, `${JSON.stringify({ ...fields, key: 'order', fence })}\t `, 'PX', 500);
};
/** The caller has a claim on the second key, behind which somebody waits, and the first one is another's. */
const halfClaimed = async (client: Redis, prefix: string): Promise<void> => {
  await prepare(client, prefix);
  const held = (await client.get(record)) ?? '';
  await client.set(record, held.replace(lockId, another), 'PX', 60_000);
  await client.set(second['record:2'], `${held}\t `, 'PX', 60_000);
  await client.zadd(second['queue:2'], 6, `${lockId}qqqqqqqqqqqqqqqq`);
  await client.zadd(second['queue:2'], 7, waiter);
  await client.zadd(second['queue:2'], -Date.now(), 'qqqqqqqqqqqqqqqq');
  await client.pexpire(second['queue:2'], 60_000);
};
/** As `passedOver`, so long ago that its process is gone. */
const forgotten = async (client: Redis, prefix: string): Promise<void> => {
  await abandoned(client, prefix);
  await client.zadd(queue, -(Date.now() - 60_001), process);
  await client.zadd(queue, 8, `${another}${'r'.repeat(16)}`);
};
const attempt = { lockId, ttlMs: 30_000, process: '', ticket: '', nested: '', queueMs: '', ...handing };
const attemptOfTwo = { ...attempt, keeps: '', keysJson: ',"keys":["order","other"]', 'keyJson:2': '"other"' };
const claim = { lockId: waiter.slice(0, 22), process, ticket: '7', queueMs: 60_000 };
const waiting = { lockId: another, process: 'qqqqqqqqqqqqqqqq', queueMs: 60_000 };
const release = { lockId, isLive: '1', leaver: '', ...handing };
const ofCount = (count: number) => ({
  release: releaseFor(count),
  releaseSeen: releaseSeenFor(count),
  extend: extendFor(count),
});
const [one, two] = [ofCount(1), ofCount(2)];

const examples: ScriptExample[] = [
  { script: acquireScript, keys: names, args: attempt, immortal },
  { script: acquireScript, keys: names, args: { ...attempt, ...waiting }, prepare, immortal },
  {
    script: acquireScript,
    keys: names,
    args: { ...attempt, lockId: another },
    prepare: abandoned,
    immortal,
    // The first run has woken the waiter, so the second one names none.
    again: [500, '', 0, 0, 0, 0, ''],
  },
  { script: acquireScript, keys: names, args: attempt, prepare: contended, immortal },
  { script: acquireScript, keys: names, args: { ...attempt, ...claim }, prepare: claimed, immortal },
  // The second run finds its own lock: it has waited no more.
  {
    script: acquireScript,
    keys: names,
    args: { ...attempt, ...claim },
    prepare: passedOver,
    immortal,
    again: [expect.not.stringMatching(/!$/)],
  },
  { script: acquireKeysFor(2), keys: { ...names, ...second }, args: attemptOfTwo, immortal },
  {
    script: acquireKeysFor(2),
    keys: { ...names, ...second },
    args: { ...attemptOfTwo, ...waiting, ticket: '3', keeps: '1' },
    prepare: contended,
    immortal,
  },
  {
    script: acquireKeysFor(2),
    keys: { ...names, ...second },
    args: { ...attemptOfTwo, process: 'qqqqqqqqqqqqqqqq', queueMs: 60_000 },
    prepare: halfClaimed,
    immortal,
    // The claim went to the next waiter in the first run.
    again: [60_000, expect.any(String), 1, 0],
  },
  // A release has no id of its own. A second run finds no lock, or the one of the next holder.
  { script: one.release, keys: names, args: release, prepare, again: [-1] },
  {
    script: one.release,
    keys: names,
    args: { ...release, isLive: '' },
    prepare: contended,
    immortal,
    again: [0],
  },
  {
    script: one.release,
    keys: names,
    args: { ...release, lockId: another, leaver: waiter },
    prepare: contended,
  },
  {
    script: one.release,
    keys: names,
    args: { ...release, lockId: another, leaver: waiter },
    prepare: passedOver,
    immortal,
  },
  {
    script: two.release,
    keys: { ...names, ...second },
    args: { ...release, 'keyJson:2': '"other"' },
    prepare: contended,
    immortal,
    again: [0],
  },
  {
    script: one.releaseSeen,
    keys: names,
    args: { ...release, seenFence: fence },
    prepare: contended,
    immortal,
    again: [-1],
  },
  {
    script: two.releaseSeen,
    keys: { ...names, ...second },
    args: { ...release, seenFence: fence, 'keyJson:2': '"other"' },
    prepare: contended,
    immortal,
    again: [-1],
  },
  { script: one.extend, keys: names, args: { lockId, ttlMs: 30_000, ...handing }, prepare },
  { script: one.extend, keys: names, args: { lockId, ttlMs: 20, ...handing }, prepare: contended },
  {
    script: one.extend,
    keys: names,
    args: { lockId, ttlMs: 20, ...handing },
    prepare: hold(-10_000),
    again: [-1],
  },
  {
    script: two.extend,
    keys: { ...names, ...second },
    args: { lockId, ttlMs: 30_000, ...handing },
    prepare: async (client: Redis, prefix: string) => {
      await prepare(client, prefix);
      await client.copy(record, second['record:2']);
    },
  },
  {
    script: handOnScript,
    keys: names,
    args: handing,
    prepare: abandoned,
    immortal,
    again: [500], // The waiter whom the first run woke has so many ms to come.
  },
  { script: handOnScript, keys: names, args: handing, prepare: claimed, immortal },
  { script: handOnScript, keys: names, args: handing, prepare: forgotten, immortal, again: [500] },
  { script: publishScript, keys: {}, args: { channel, message: '' } },
  { script: queueScript, keys: { queue }, args: { most: 2 }, prepare: contended },
  { script: releaseByIdScript, keys: { record, index, mark }, args: { lockId, nonce }, prepare },
  {
    script: releaseByIdScript,
    keys: { record: index, index, mark },
    args: { lockId, nonce },
    prepare,
    undeclared,
  },
  { script: extendByIdScript, keys: { record, index }, args: { lockId, ttlMs: 30_000 }, prepare },
  {
    script: extendByIdScript,
    keys: { record: index, index },
    args: { lockId, ttlMs: 30_000 },
    prepare,
    undeclared,
  },
  {
    script: extendByIdScript,
    keys: { record, index },
    args: { lockId, ttlMs: 30_000 },
    prepare: hold(-10_000),
    again: [-1],
  },
  { script: readScript, keys: { record }, args: { isIndex: '' }, prepare },
  { script: readScript, keys: { record: index }, args: { isIndex: '1' }, prepare, undeclared },
  { script: readIndexScript, keys: { index }, args: {}, prepare },
  { script: cleanupScript, keys: { record, index }, args: { lockId }, prepare: hold(-10_000), again: [0] },
];

/** Whose the locks are, and for how long. */
const stays = (client: Redis): Promise<unknown> =>
  Promise.all(
    [record, second['record:2']].map(async (key) => [
      /"lockId":"[^"]+"/.exec((await client.get(key)) ?? '')?.[0],
      await client.pttl(key),
    ]),
  );

export const lockExamples = examples.map((example) => ({ ...example, replaces, stays }));
