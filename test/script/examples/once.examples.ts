import type { Redis } from 'ioredis';
import { claimScript } from '../../../lib/once/redis/claim.script.js';
import { endScript, forgetScript, renewScript, settleScript } from '../../../lib/once/redis/end.scripts.js';
import { getScript } from '../../../lib/once/redis/get.script.js';
import type { ScriptExample } from './example.js';

const record = 'syncguard/once:{t}';
const keys = { record };
const onceKey = 'pay:7\n{é}';
const runNonce = 'run-1';
const channel = 'syncguard/wake:';

interface Stored {
  readonly state?: string;
  readonly at?: number;
  readonly crash?: string;
  readonly waiters?: string;
  readonly attempt?: number;
  readonly result?: string;
}

/** Stores a record, by default that of a run in the middle of its lease. */
const stored =
  ({ state = 'running', at = 10_000, crash = 'run', waiters = '-', attempt = 1, result = '' }: Stored = {}) =>
  async (client: Redis): Promise<void> => {
    const nowMs = Date.now();
    const form = state === 'done' ? 'value' : 'none';
    const times = `${nowMs - 5_000} ${nowMs + at} 60000`;
    const bytes = Buffer.byteLength(onceKey);
    const line = `once1 ${state} ${runNonce} 017734804135890 ${attempt} ${times} ${crash} print ${form} ${bytes} ${waiters}`;
    await client.set(record, `${line}\n${onceKey}${result}`, 'PX', 60_000);
  };

const claim = {
  ...{ onceKey, claimNonce: 'run-2', claimPrint: 'print', leaseMs: 30_000, keepMs: 60_000 },
  ...{ afterCrash: 'run', waiter: '-', callProcess: 'p', waitMs: 0 },
};
const waiter = (id: string): string => `${id}:p:${Date.now() + 60_000},`;
const kept = { runNonce, how: 'kept', newForm: 'value', result: Buffer.from([0, 255]), channel };

export const onceExamples: ScriptExample[] = [
  { script: claimScript, keys, args: claim },
  { script: claimScript, keys, args: claim, prepare: stored() },
  { script: claimScript, keys, args: claim, prepare: stored({ state: 'done', at: -9, result: '{}' }) },
  { script: claimScript, keys, args: claim, prepare: stored({ state: 'failed', at: -9, attempt: 2 }) },
  { script: claimScript, keys, args: claim, prepare: stored({ at: -9, crash: 'refuse' }) },
  { script: claimScript, keys, args: { ...claim, claimPrint: 'other' }, prepare: stored() },
  {
    script: claimScript,
    keys,
    args: { ...claim, waiter: 'w2', waitMs: 9_000 },
    prepare: stored({ waiters: waiter('w1') }),
  },
  {
    script: claimScript,
    keys,
    args: { ...claim, waiter: 'w1', waitMs: 9_000 },
    prepare: stored({ state: 'failed', at: -9, waiters: waiter('w1') + waiter('w2') }),
  },
  { script: renewScript, keys, args: { runNonce, leaseMs: 30_000 }, prepare: stored() },
  { script: renewScript, keys, args: { runNonce: 'run-2', leaseMs: 30_000 }, prepare: stored() },
  { script: endScript, keys, args: kept, prepare: stored({ waiters: waiter('w1') + waiter('w2') }) },
  { script: endScript, keys, args: { ...kept, how: 'failed' }, prepare: stored({ waiters: waiter('w1') }) },
  { script: endScript, keys, args: { ...kept, how: 'nothing' }, prepare: stored() },
  { script: endScript, keys, args: { ...kept, how: 'nothing' }, prepare: stored({ attempt: 2 }) },
  { script: getScript, keys, args: {}, prepare: stored() },
  {
    script: settleScript,
    keys,
    args: { settleNonce: 's', newForm: 'value', result: Buffer.from('{}'), channel },
    prepare: stored({ at: -9, crash: 'refuse' }),
  },
  { script: forgetScript, keys, args: { force: 0, channel }, prepare: stored({ state: 'failed', at: -9 }) },
  { script: forgetScript, keys, args: { force: 1, channel }, prepare: stored() },
];
