import type { ConfigurableModuleAsyncOptions } from '@nestjs/common';
import { type BudgetOptions, resolveBudgetDefaults } from '../budget/budget.options.js';
import {
  type LimitDefaults,
  type LimitPolicies,
  resolveLimitDefaults,
  resolveLimits,
} from '../limit/limit.options.js';
import { type LockDefaults, resolveLockDefaults } from '../lock/lock.options.js';
import type { RedisConnectionOptions } from '../redis/redis.client.js';
import { validateKeyPrefix } from '../redis/redis.keys.js';
import { resolveCommandTimeout, resolveKeyLayout, validateRedis } from '../redis/redis.options.js';
import { DEFAULT_MAX_RETRY_AFTER_MS } from '../transport/refusal.js';
import { type OnceModuleOptions, resolveOnceDefaults } from '../once/once.options.js';
import { resolveSecretDefaults, type SecretOptions } from '../secret/secret.options.js';
import { resolveTelemetryOptions, type TelemetryOptions } from '../telemetry/telemetry.options.js';
import { boolean, integer, invalidOption, knownOptions, oneOf } from '../core/validate.js';

/** Options of the module, and the result of the factories of `forRootAsync`. */
export interface SyncGuardOptions {
  /**
   * The address of Redis: a URL (`redis://user:password@host:6379/0`, `rediss://` for TLS, or the path of a socket),
   * ioredis options, a client of your own (`Redis` or `Cluster`, which is closed only with `closeClient`), or `{ nodes,
   * options }` for a Cluster. Options that name no server are refused: ioredis would use `localhost:6379`. Default: none,
   * the memory backend, for one process.
   */
  redis?: RedisConnectionOptions | undefined;
  /**
   * The first part of every Redis key. 1 to 128 printable ASCII characters, no `/`, `{`, `}`. Apps on one server need one each,
   * and none may be the beginning of another up to a `:`. `shop` with the key `billing:order:7` is the lock of `shop:billing`
   * with `order:7`. Default: `'syncguard'`.
   */
  keyPrefix?: string;
  /**
   * Closes the client that was passed as `redis` when the app shuts down, for a client that `useFactory` has created.
   * Default: false.
   */
  closeClient?: boolean;
  /**
   * How lock keys are named: `'spec'` is the format that other SyncGuard programs share on one server, `'slotted'` puts
   * a lock's keys in one Cluster slot, and leaves no fence counter for each key behind. Default: `'slotted'` on a
   * Cluster, else `'spec'`. Choose `'slotted'` from the start if you will move to a Cluster.
   */
  keyLayout?: 'spec' | 'slotted';
  /**
   * The longest time of one attempt on Redis, including the wait for the connection, in ms, 1 to 600,000. `finalize`
   * and `abort` of a budget make up to three attempts. Default: 1,000.
   */
  commandTimeoutMs?: number;
  /** Registers the exception filter that turns our errors into answers such as 423, 503 and 400. Default: true. */
  http?:
    | boolean
    | {
        /**
         * The longest `Retry-After` and `context.retryAfter` of every feature, in ms, 1,000 to 2^31 - 1. A client that waits by
         * a timer cannot wait longer than 24.8 days. `context.retryAtMs` has the real time. Default: a day.
         */
        maxRetryAfterMs?: number;
      };
  /** Defaults of every lock. */
  lock?: LockDefaults;
  /** Named policies for `@RateLimit('name')`. `RateLimitGuard` applies the policy that is named `default`. Default: the presets. */
  limits?: LimitPolicies;
  /** Defaults of every limit, and the calls that are never limited. */
  limit?: LimitDefaults;
  /** Options of budgets, with their limits. */
  budget?: BudgetOptions;
  /** Options of secrets. */
  secret?: SecretOptions;
  /** Options of calls that are answered once. */
  once?: OnceModuleOptions;
  /** The listener of all operations. Default: none, which costs nothing. */
  telemetry?: TelemetryOptions;
  /**
   * Lets operators ask which process holds a lock (`LockService.holder`), and tells a holder at once when its lock is released
   * by hand. Costs one subscription a process, which else is opened when a call waits. Default: false.
   */
  operations?: boolean;
  /** How the app shuts down while bodies run. */
  shutdown?: {
    /** How long bodies that hold a lock, and budget runs, may finish while the app shuts down, in ms, 0 to 2^31 - 1. Default: 10,000. */
    drainMs?: number;
    /**
     * What happens to a lock whose body still runs after `drainMs`. With `'expire'` it stays until its TTL has passed,
     * so that no other body runs beside this one. With `'release'` it is free at once, for bodies that end when their
     * `signal` aborts. Default: `'expire'`.
     */
    heldLocks?: 'expire' | 'release';
  };
}

/** Options of `SyncGuardModule.forRoot`. Without any options the module runs in the memory of this process. */
export interface SyncGuardModuleOptions extends SyncGuardOptions {
  /** Provides the services to the whole app. With `false` only modules that import this one get them. Default: true. */
  isGlobal?: boolean;
}

/** Options of `SyncGuardModule.forRootAsync`: one of `useFactory`, `useClass` and `useExisting`. */
export interface SyncGuardModuleAsyncOptions extends ConfigurableModuleAsyncOptions<
  SyncGuardOptions,
  'createSyncGuardOptions'
> {
  /** As on `forRoot`. Default: true. */
  isGlobal?: boolean;
}

/** Implemented by the classes for `forRootAsync({ useClass | useExisting })`. */
export interface SyncGuardOptionsFactory {
  /** Returns the options of the module. */
  createSyncGuardOptions(): SyncGuardOptions | Promise<SyncGuardOptions>;
}

export const OPTION_NAMES = [
  'redis',
  'keyPrefix',
  'closeClient',
  'keyLayout',
  'commandTimeoutMs',
  'http',
  'lock',
  'limits',
  'limit',
  'budget',
  'secret',
  'once',
  'telemetry',
  'operations',
  'shutdown',
] as const;

/**
 * Checks every option and fills in the defaults. It opens no connection.
 *
 * @throws SyncGuardConfigError naming the option, its bound, the value and its type. Passwords never appear.
 */
export function resolveOptions(options: SyncGuardOptions = {}) {
  const given = knownOptions('options', options, OPTION_NAMES);
  const shutdown = knownOptions('shutdown', given.shutdown, ['drainMs', 'heldLocks']);
  const limit = resolveLimitDefaults(given.limit);
  const redis = given.redis === undefined ? undefined : validateRedis(given.redis);
  return {
    redis,
    keyPrefix: validateKeyPrefix(given.keyPrefix ?? 'syncguard'),
    closeClient: boolean('closeClient', given.closeClient ?? false),
    keyLayout: resolveKeyLayout(given.keyLayout, redis),
    commandTimeoutMs: resolveCommandTimeout(given.commandTimeoutMs),
    ...resolveHttp(given.http ?? true),
    lock: resolveLockDefaults(given.lock),
    limits: resolveLimits(given.limits, limit),
    limit,
    budget: resolveBudgetDefaults(given.budget),
    secret: resolveSecretDefaults(given.secret),
    once: resolveOnceDefaults(given.once),
    telemetry: given.telemetry === undefined ? undefined : resolveTelemetryOptions(given.telemetry),
    operations: boolean('operations', given.operations ?? false),
    shutdown: {
      drainMs: integer('shutdown.drainMs', shutdown.drainMs ?? 10_000),
      heldLocks: oneOf('shutdown.heldLocks', shutdown.heldLocks ?? 'expire', ['expire', 'release']),
    },
  };
}

/** The options with every default filled in. */
export type ResolvedSyncGuardOptions = Readonly<ReturnType<typeof resolveOptions>>;

function resolveHttp(http: unknown): { http: boolean; maxRetryAfterMs: number } {
  if (typeof http === 'boolean') return { http, maxRetryAfterMs: DEFAULT_MAX_RETRY_AFTER_MS };
  if (typeof http !== 'object' || http === null)
    throw invalidOption('http', 'true, false or { maxRetryAfterMs }', http);
  const { maxRetryAfterMs = DEFAULT_MAX_RETRY_AFTER_MS } = knownOptions('http', http, ['maxRetryAfterMs']);
  return { http: true, maxRetryAfterMs: integer('http.maxRetryAfterMs', maxRetryAfterMs, 1_000) };
}
