import type { Clock } from '../core/clock.js';
import type { LockBackend } from '../lock/lock.backend.js';
import { slottedLayout, specLayout } from '../lock/redis/lock.layout.js';
import { MemoryLockBackend } from '../lock/memory/lock.memory-backend.js';
import { lockScripts } from '../lock/redis/lock.scripts.js';
import { RedisLockBackend } from '../lock/redis/lock.redis-backend.js';
import type { MemoryCapabilities, RedisCapabilities } from '../lock/lock.types.js';
import type {
  EvalClient,
  IoredisClient,
  RedisClient,
  RedisConnectionOptions,
} from '../redis/redis.client.js';
import { validateKeyPrefix } from '../redis/redis.keys.js';
import { resolveCommandTimeout, resolveKeyLayout, validateRedis } from '../redis/redis.options.js';
import { ScriptRunner } from '../script/script-runner.js';
import { boolean, invalidOption, knownOptions } from '../core/validate.js';
import { NO_PUBSUB } from '../redis/redis.server-warnings.js';

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
 * Creates a lock backend on Redis, without Nest. Each of its methods is one atomic attempt that does not
 * wait.
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
  const redis = validateRedis(client) as RedisConnectionOptions & RedisClient;
  return redisLocks(new ScriptRunner(redis, resolveCommandTimeout(config.commandTimeoutMs)), {
    keyPrefix: validateKeyPrefix(config.keyPrefix ?? 'syncguard'),
    keyLayout: resolveKeyLayout(config.keyLayout, redis),
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
  }: Required<Pick<RedisBackendConfig, 'keyPrefix' | 'keyLayout' | 'cleanupInIsLocked' | 'warn'>>,
): LockBackend<RedisCapabilities> {
  const layout = keyLayout === 'spec' ? specLayout(keyPrefix) : slottedLayout(keyPrefix, runner.client);
  return new RedisLockBackend(runner, layout, { ...options, onUnheard: () => options.warn(NO_PUBSUB) });
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
