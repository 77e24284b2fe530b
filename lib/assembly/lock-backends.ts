import type { Clock } from '../core/clock.js';
import type { LockBackend } from '../lock/lock.backend.js';
import { slottedLayout, specLayout } from '../lock/redis/lock.layout.js';
import { FenceGuard } from '../lock/fence-guard.js';
import { MemoryFenceBackend } from '../lock/memory/fence.memory-backend.js';
import { MemoryLockBackend } from '../lock/memory/lock.memory-backend.js';
import { RedisFenceBackend } from '../lock/redis/fence.redis-backend.js';
import { lockScripts } from '../lock/redis/lock.scripts.js';
import { RedisLockBackend, type RedisLockBackendConfig } from '../lock/redis/lock.redis-backend.js';
import type { MemoryCapabilities, RedisCapabilities } from '../lock/lock.types.js';
import type { EvalClient, IoredisClient, RedisConnectionOptions } from '../redis/redis.client.js';
import { validateKeyPrefix } from '../redis/redis.keys.js';
import { resolveCommandTimeout, resolveKeyLayout, validateClient } from '../redis/redis.options.js';
import { ProcessChannel } from '../script/process-channel.js';
import { ScriptRunner } from '../script/script-runner.js';
import { boolean, invalidOption, knownOptions } from '../core/validate.js';

/** Options of {@link createRedisBackend}. */
export interface RedisBackendConfig {
  /** First part of every Redis key. 1 to 128 printable ASCII characters, no `/`, `{`, `}`. Default: `'syncguard'`. */
  keyPrefix?: string;
  /** As in the module's options. Default: `'slotted'` on a Cluster, else `'spec'`. */
  keyLayout?: 'spec' | 'slotted';
  /** The longest time of one attempt, in ms, 1 to 600,000. Default: 1,000. */
  commandTimeoutMs?: number;
  /** Whether `isLocked` deletes a record that has expired. Default: false. */
  cleanupInIsLocked?: boolean;
  /** Called with warnings. Default: `process.emitWarning`. */
  warn?: (message: string) => void;
}

/**
 * Creates a lock backend on Redis, without Nest. Each of its methods is one atomic attempt that does not wait.
 *
 * @param client - an ioredis `Redis` or `Cluster`, or a client that has only `eval`. The caller closes it.
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const locks = createRedisBackend(new Redis());
 * const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
 * if (lock.ok) await lock.release();
 */
export function createRedisBackend(
  client: IoredisClient | EvalClient,
  config: RedisBackendConfig = {},
): LockBackend<RedisCapabilities> {
  knownOptions('config', config, ['keyPrefix', 'keyLayout', 'commandTimeoutMs', 'cleanupInIsLocked', 'warn']);
  const { cleanupInIsLocked = false, warn = emitWarning } = config;
  if (typeof warn !== 'function') throw invalidOption('config.warn', 'a function', warn);
  const { runner, keyLayout } = runnerOn(client, config);
  const keyPrefix = validateKeyPrefix(config.keyPrefix ?? 'syncguard');
  return redisLocks(runner, {
    ...{ keyPrefix, keyLayout },
    channel: new ProcessChannel(runner, keyPrefix, warn),
    cleanupInIsLocked: boolean('config.cleanupInIsLocked', cleanupInIsLocked),
    warn,
  });
}

/** The scripts that {@link createRedisBackend} runs, for inspection. */
export const LOCK_SCRIPTS: readonly { readonly name: string; readonly lua: string }[] = lockScripts;

const emitWarning = (message: string): void => process.emitWarning(message, 'SyncGuardWarning');

export function redisLocks(
  runner: ScriptRunner,
  {
    keyPrefix,
    keyLayout,
    ...options
  }: Required<Pick<RedisBackendConfig, 'keyPrefix' | 'keyLayout'>> & RedisLockBackendConfig,
): LockBackend<RedisCapabilities> {
  const layout = keyLayout === 'spec' ? specLayout(keyPrefix) : slottedLayout(keyPrefix, runner.client);
  return new RedisLockBackend(runner, layout, options);
}

/**
 * Creates a lock backend in the memory of this process, without Nest. For a single process, and for tests.
 *
 * @param config.clock - where the time comes from. Default: the system's clock.
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const locks = createMemoryBackend();
 * const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
 */
export function createMemoryBackend(config: { clock?: Clock } = {}): LockBackend<MemoryCapabilities> {
  const { clock } = knownOptions('config', config, ['clock']) as typeof config;
  if (clock !== undefined && typeof (clock as Partial<Clock> | null)?.now !== 'function')
    throw invalidOption('config.clock', 'a clock: an object with now()', clock);
  return new MemoryLockBackend(clock);
}

/** Options of {@link createFenceGuard}. They mean the same as in {@link createRedisBackend}. */
export type FenceGuardConfig = Pick<RedisBackendConfig, 'keyPrefix' | 'keyLayout' | 'commandTimeoutMs'>;

/**
 * Creates a {@link FenceGuard} without Nest, for a program that writes with a fence.
 *
 * @param client - an ioredis `Redis` or `Cluster`, or a client that has only `eval`. The caller closes it. Undefined:
 *   the guard works in the memory of this process, for tests.
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const fences = createFenceGuard(redis);
 * const { ok } = await fences.apply({ resource: 'order:7', fence, lockId });
 */
export function createFenceGuard(
  client?: IoredisClient | EvalClient,
  config: FenceGuardConfig = {},
): FenceGuard {
  knownOptions('config', config, ['keyPrefix', 'keyLayout', 'commandTimeoutMs']);
  const keyPrefix = validateKeyPrefix(config.keyPrefix ?? 'syncguard');
  if (client === undefined) return new FenceGuard(new MemoryFenceBackend(), { keyPrefix });
  const { runner, keyLayout } = runnerOn(client, config);
  return new FenceGuard(new RedisFenceBackend(runner, { keyPrefix, keyLayout }), { keyPrefix });
}

function runnerOn(
  client: IoredisClient | EvalClient,
  { commandTimeoutMs, keyLayout }: FenceGuardConfig,
): { runner: ScriptRunner; keyLayout: 'spec' | 'slotted' } {
  const redis = validateClient(client);
  const runner = new ScriptRunner(redis, resolveCommandTimeout(commandTimeoutMs));
  return { runner, keyLayout: resolveKeyLayout(keyLayout, redis as RedisConnectionOptions) };
}
