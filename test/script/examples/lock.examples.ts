import type { Redis } from 'ioredis';
import {
  acquireScript,
  cleanupScript,
  extendByIdScript,
  extendScript,
  readByIdScript,
  readIndexScript,
  readScript,
  releaseByIdScript,
  releaseFoundScript,
  releaseHeldScript,
  releaseScript,
} from '../../../lib/lock/lock.scripts.js';
import type { ScriptExample } from './example.js';

const lockId = 'abcdefghijklmnopqrstuv';
const record = 'syncguard:{t}:order';
const index = `syncguard:{t}:id:${lockId}`;
const mark = `syncguard/{t}:released:${lockId}`;
const nonce = 'nonce';
const fenceCounter = `syncguard:{t}:fence:${record}`;
const immortal = /:fence:/;
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
      fence: '000000000000007',
    };
    await client.set(record, JSON.stringify(fields), 'PX', 60_000);
    await client.set(index, prefix + record, 'PX', 60_000);
  };
const prepare = hold(30_000);

export const lockExamples: ScriptExample[] = [
  {
    script: acquireScript,
    keys: { record, index, fenceCounter },
    args: { lockId, ttlMs: 30_000, keyJson: '"order"' },
    immortal,
  },
  { script: releaseHeldScript, keys: { record, index }, args: { lockId }, prepare },
  { script: releaseScript, keys: { record, index }, args: { lockId }, prepare },
  { script: releaseFoundScript, keys: { record, index, mark }, args: { lockId, nonce }, prepare },
  { script: releaseByIdScript, keys: { index, mark }, args: { lockId, nonce }, prepare, undeclared },
  { script: extendScript, keys: { record, index }, args: { lockId, ttlMs: 30_000 }, prepare },
  { script: extendByIdScript, keys: { index }, args: { lockId, ttlMs: 30_000 }, prepare, undeclared },
  { script: readScript, keys: { record }, args: {}, prepare },
  { script: readByIdScript, keys: { index }, args: {}, prepare, undeclared },
  { script: readIndexScript, keys: { index }, args: {}, prepare },
  { script: cleanupScript, keys: { record, index }, args: { lockId }, prepare: hold(-10_000) },
];
