import type { Redis } from 'ioredis';
import {
  applyAndSetScript,
  applyFenceScript,
  getFencedScript,
} from '../../../lib/lock/redis/fence.scripts.js';
import type { ScriptExample } from './example.js';

const lockId = 'abcdefghijklmnopqrstuv';
const target = 'order:7';
const guard = 'syncguard/fenced:{order:7}:0123456789abcdefghijkl';
const fence = '000000000000007';
const immortal = /^(app:)?(syncguard\/fenced:|order:7$)/;

const seen =
  (last: string) =>
  async (client: Redis): Promise<void> => {
    await client.set(guard, `${last}${lockId}`);
    await client.set(target, 'before');
  };

export const fenceExamples: ScriptExample[] = [
  { script: applyFenceScript, keys: { guard }, args: { fence, lockId }, immortal },
  {
    script: applyFenceScript,
    keys: { guard },
    args: { fence, lockId },
    prepare: seen('000000000000008'),
    immortal,
  },
  { script: applyAndSetScript, keys: { guard, target }, args: { fence, lockId, value: 'after' }, immortal },
  {
    script: applyAndSetScript,
    keys: { guard, target },
    args: { fence, lockId, value: 'after' },
    prepare: seen('000000000000006'),
    immortal,
  },
  { script: getFencedScript, keys: { target }, args: {}, prepare: seen(fence), immortal },
];
