import type { Redis } from 'ioredis';
import { burnScript } from '../../../lib/secret/redis/burn.script.js';
import { confirmScript, releaseScript } from '../../../lib/secret/redis/settle.scripts.js';
import { createScript } from '../../../lib/secret/redis/create.script.js';
import { peekScript, statusScript } from '../../../lib/secret/redis/read.scripts.js';
import { viewScript } from '../../../lib/secret/redis/view.script.js';
import type { ScriptExample } from './example.js';

const content = 'syncguard/secret:{t}';
const record = `${content}:record`;
const keys = { content, record };
const proof = 'P'.repeat(22);
const viewTag = 'V'.repeat(22);
const tombstoneMs = 60_000;

const write = async (client: Redis, fields: Record<string, string>): Promise<void> => {
  const expires = String(Date.now() + 60_000);
  await client.hset(record, { proof, left: '1', expires, tombstone: tombstoneMs, ...fields });
  await client.hset(content, { bytes: 'the secret', form: 'text', meta: '' });
  await client.pexpire(content, 60_000);
  await client.pexpire(record, 120_000);
};
const prepare = (client: Redis): Promise<void> => write(client, {});
/** The last view is on lease. */
const lend = (client: Redis): Promise<void> =>
  write(client, {
    left: '0',
    [`view:${viewTag}`]: '0',
    leases: `${viewTag}:${Date.now() + 30_000}:${viewTag},;`,
    max: '3',
  });

const replayed = ['shown'];
const leaseMs = 30_000;
const immortal = /secret/;
/** The only view of a secret without a deadline is on lease. */
const lendForever = async (client: Redis): Promise<void> => {
  const leases = `${viewTag}:${Date.now() + leaseMs}:;`;
  await write(client, { left: '0', expires: '0', used: '1', [`view:${viewTag}`]: '0', leases });
};

export const secretExamples: ScriptExample[] = [
  {
    script: createScript,
    keys,
    args: {
      proof,
      bytes: Buffer.from([0, 255]),
      form: 'bytes',
      views: 2,
      ttlMs: 60_000,
      meta: '{}',
      maxFailures: 3,
      secretLabel: 'order 7',
      tombstoneMs,
    },
  },
  {
    script: viewScript,
    keys,
    args: { viewTag, callId: viewTag, leaseMs: 0 },
    prepare,
    // The last view burned the secret, and a second run cannot show it.
    again: ['burned_by_you'],
  },
  {
    script: viewScript,
    keys,
    args: { viewTag, callId: viewTag, leaseMs: 0 },
    prepare: (client) => write(client, { left: '-1' }),
  },
  {
    script: viewScript,
    keys,
    args: { viewTag, callId: viewTag, leaseMs },
    prepare: (client) => write(client, { expires: '0' }),
    again: replayed,
  },
  {
    script: viewScript,
    keys,
    args: { viewTag, callId: viewTag, leaseMs },
    prepare: (client) => write(client, { left: '5', max: '3' }),
    again: replayed,
  },
  {
    script: viewScript,
    keys,
    args: { viewTag, callId: viewTag, leaseMs: 0 },
    prepare: (client) => write(client, { tombstone: '0' }),
    again: ['not_found'],
  },
  {
    script: viewScript,
    keys,
    args: { viewTag, callId: viewTag, leaseMs: 0 },
    prepare: (client) => write(client, { left: '0', ended: `used:${Date.now()}` }),
  },
  { script: peekScript, keys, args: {}, prepare },
  { script: burnScript, keys, args: { proof, burnId: 'B'.repeat(22), forget: 0 }, prepare },
  { script: statusScript, keys, args: { proof }, prepare },
  { script: confirmScript, keys, args: { viewTag }, prepare: lend },
  {
    script: confirmScript,
    keys,
    args: { viewTag },
    prepare: (client) => write(client, { [`view:${viewTag}`]: '1' }),
  },
  { script: releaseScript, keys, args: { viewTag }, prepare: lend },
  { script: releaseScript, keys, args: { viewTag }, prepare: lendForever, immortal },
  {
    script: releaseScript,
    keys,
    args: { viewTag },
    prepare: async (client) => {
      await lend(client);
      await client.hset(record, 'max', '1');
    },
  },
];
