import type { LockLayout } from '../../lib/lock/redis/lock.layout.js';
import { RedisLockBackend } from '../../lib/lock/redis/lock.redis-backend.js';
import { RedisOnceBackend } from '../../lib/once/redis/once.redis-backend.js';
import { ProcessChannel } from '../../lib/script/process-channel.js';
import type { ScriptRunner } from '../../lib/script/script-runner.js';

// Backends on a runner of the test, each with a channel of its own, as of a process that uses nothing else.

export const locksOn = (runner: ScriptRunner, layout: LockLayout): RedisLockBackend =>
  new RedisLockBackend(runner, layout, {
    cleanupInIsLocked: false,
    warn: () => {},
    channel: new ProcessChannel(runner, 'syncguard'),
  });

export const onceOn = (runner: ScriptRunner, keyPrefix: string): RedisOnceBackend =>
  new RedisOnceBackend(runner, keyPrefix, new ProcessChannel(runner, keyPrefix));
