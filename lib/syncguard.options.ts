import {
  type BudgetOptions,
  type ResolvedBudgetOptions,
  resolveBudgetDefaults,
} from './budget/budget.options.js';
import { describe } from './keys.js';
import {
  type LimitDefaults,
  type LimitPolicies,
  type ResolvedLimitOptions,
  resolveLimitDefaults,
  resolveLimits,
} from './limit/limit.options.js';
import type { ResolvedPolicy } from './limit/limit.policy.js';
import { type LockDefaults, type ResolvedLockDefaults, resolveLockDefaults } from './lock/lock.options.js';
import type { RedisClient, RedisConnectionOptions } from './redis/redis.client.js';
import { validateKeyPrefix } from './redis/redis.keys.js';
import { DEFAULT_MAX_RETRY_AFTER_MS } from './refusal.js';
import {
  type ResolvedSecretOptions,
  resolveSecretDefaults,
  type SecretOptions,
} from './secret/secret.options.js';
import { SyncGuardConfigError } from './syncguard.errors.js';
import {
  type ResolvedTelemetryOptions,
  resolveTelemetryOptions,
  type TelemetryOptions,
} from './telemetry/telemetry.options.js';
import { boolean, integer, invalidOption, knownOptions, oneOf } from './validate.js';

/** Options of `SyncGuardModule.forRoot`. All may be left out: then locks live in this process's memory. */
export interface SyncGuardOptions {
  /**
   * Where Redis is: a URL (`redis://user:password@host:6379/0`, `rediss://` for TLS, or a socket's path),
   * ioredis options, a client of your own (`Redis` or `Cluster`; never closed unless `closeClient`), or a
   * Cluster's `{ nodes, options }`. Default: none, the memory backend, for one process.
   */
  redis?: RedisConnectionOptions | undefined;
  /** First part of every Redis key. 1 to 128 printable ASCII characters, no `/`, `{`, `}`. Default: `'syncguard'`. */
  keyPrefix?: string;
  /** Close the client passed as `redis` when the app shuts down: for one made in `useFactory`. Default: false. */
  closeClient?: boolean;
  /**
   * How lock keys are named: `'spec'` is the format that other SyncGuard programs share on one server,
   * `'slotted'` puts a lock's keys in one Cluster slot. Default: `'slotted'` on a Cluster, else `'spec'`.
   * A team that will move to a Cluster starts `'slotted'`.
   */
  keyLayout?: 'spec' | 'slotted';
  /**
   * Longest time for one try against Redis, waiting for the connection included, in ms, 1 to 600,000. Finalize and
   * abort of a budget try three times. Default: 1,000.
   */
  commandTimeoutMs?: number;
  /**
   * Register the exception filter that answers 423, 503, 400 for our errors. Default: true.
   *
   * `maxRetryAfterMs`, 1,000 to 2^31 - 1: no `Retry-After` and no `context.retryAfter` of any feature is longer, since a
   * client that waits longer than 24.8 days by a timer does not wait at all; `context.retryAtMs` has the truth. Default: a
   * day, also with `false`.
   */
  http?: boolean | { maxRetryAfterMs?: number };
  /** Defaults of every lock. */
  lock?: LockDefaults;
  /** Named policies, for `@RateLimit('name')`; the one named `default` is what `RateLimitGuard` applies. */
  limits?: LimitPolicies;
  /** Defaults of every limit, and what is never limited. */
  limit?: LimitDefaults;
  /** What budgets are limited to. */
  budget?: BudgetOptions;
  /** How secrets are kept. */
  secret?: SecretOptions;
  /** Who is told of every operation. Default: nobody, at no cost. */
  telemetry?: TelemetryOptions;
  shutdown?: {
    /** How long bodies that hold a lock, and budget runs, may finish while the app shuts down, in ms, 0 to 2^31 - 1. Default: 10,000. */
    drainMs?: number;
    /**
     * What becomes of a lock whose body still runs then. `'expire'`: it stays until its TTL has passed, so that nobody
     * enters beside the body. `'release'`: it is free at once, for bodies that do end when their `signal` aborts.
     * Default: `'expire'`.
     */
    heldLocks?: 'expire' | 'release';
  };
}

/** For `forRootAsync({ useClass | useExisting })`. */
export interface SyncGuardOptionsFactory {
  createSyncGuardOptions(): SyncGuardOptions | Promise<SyncGuardOptions>;
}

export interface ResolvedSyncGuardOptions {
  readonly redis: RedisConnectionOptions | undefined;
  readonly keyPrefix: string;
  readonly closeClient: boolean;
  readonly keyLayout: 'spec' | 'slotted';
  readonly commandTimeoutMs: number;
  readonly http: boolean;
  readonly maxRetryAfterMs: number;
  readonly lock: ResolvedLockDefaults;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
  readonly limit: ResolvedLimitOptions;
  readonly budget: ResolvedBudgetOptions;
  readonly secret: ResolvedSecretOptions;
  readonly telemetry: ResolvedTelemetryOptions | undefined;
  readonly shutdown: { readonly drainMs: number; readonly heldLocks: 'expire' | 'release' };
}

/**
 * Checks every option and fills in the defaults. Pure: it opens nothing.
 *
 * @throws SyncGuardConfigError naming option, bound, value and type; passwords never appear.
 */
export function resolveOptions(options: SyncGuardOptions = {}): ResolvedSyncGuardOptions {
  const given = knownOptions('options', options, [
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
    'telemetry',
    'shutdown',
  ]);
  const shutdown = knownOptions('shutdown', given.shutdown, ['drainMs', 'heldLocks']);
  const limit = resolveLimitDefaults(given.limit);
  const redis = given.redis === undefined ? undefined : validateRedis(given.redis);
  return {
    redis,
    keyPrefix: validateKeyPrefix(given.keyPrefix ?? 'syncguard'),
    closeClient: boolean('closeClient', given.closeClient ?? false),
    keyLayout: resolveKeyLayout(given.keyLayout, redis),
    commandTimeoutMs: integer('commandTimeoutMs', given.commandTimeoutMs ?? 1_000, 1, 600_000),
    ...resolveHttp(given.http ?? true),
    lock: resolveLockDefaults(given.lock),
    limits: resolveLimits(given.limits, limit),
    limit,
    budget: resolveBudgetDefaults(given.budget),
    secret: resolveSecretDefaults(given.secret),
    telemetry: given.telemetry === undefined ? undefined : resolveTelemetryOptions(given.telemetry),
    shutdown: {
      drainMs: integer('shutdown.drainMs', shutdown.drainMs ?? 10_000),
      heldLocks: oneOf('shutdown.heldLocks', shutdown.heldLocks ?? 'expire', ['expire', 'release']),
    },
  };
}

function resolveHttp(http: unknown): Pick<ResolvedSyncGuardOptions, 'http' | 'maxRetryAfterMs'> {
  if (typeof http === 'boolean') return { http, maxRetryAfterMs: DEFAULT_MAX_RETRY_AFTER_MS };
  if (typeof http !== 'object' || http === null)
    throw invalidOption('http', 'true, false or { maxRetryAfterMs }', http);
  const { maxRetryAfterMs = DEFAULT_MAX_RETRY_AFTER_MS } = knownOptions('http', http, ['maxRetryAfterMs']);
  return { http: true, maxRetryAfterMs: integer('http.maxRetryAfterMs', maxRetryAfterMs, 1_000) };
}

/** Seconds, minutes, hours, days in ms: `minutes(5)` reads better than `300_000`. */
export const seconds = (n: number): number => milliseconds('seconds', n, 1_000);
export const minutes = (n: number): number => milliseconds('minutes', n, 60_000);
export const hours = (n: number): number => milliseconds('hours', n, 3_600_000);
export const days = (n: number): number => milliseconds('days', n, 86_400_000);

function milliseconds(unit: string, n: unknown, factor: number): number {
  if (typeof n !== 'number' || !Number.isFinite(n) || n < 0)
    throw invalidOption(`${unit}(n)`, 'a number of at least 0', n);
  return Math.round(n * factor);
}

export const isRedisClient = (redis: unknown): redis is RedisClient =>
  typeof redis === 'object' &&
  redis !== null &&
  (typeof (redis as RedisClient).defineCommand === 'function' ||
    typeof (redis as RedisClient).eval === 'function');

export const isClusterOptions = (
  redis: unknown,
): redis is Extract<RedisConnectionOptions, { nodes: unknown }> =>
  typeof redis === 'object' && redis !== null && 'nodes' in redis && !isRedisClient(redis);

function resolveKeyLayout(layout: unknown, redis: RedisConnectionOptions | undefined): 'spec' | 'slotted' {
  const cluster = isClusterOptions(redis) || (isRedisClient(redis) && redis.isCluster === true);
  if (layout === undefined) return cluster ? 'slotted' : 'spec';
  const chosen = oneOf('keyLayout', layout, ['spec', 'slotted']);
  if (cluster && chosen === 'spec')
    throw new SyncGuardConfigError(`keyLayout must be "slotted" on a Redis Cluster, got "spec".`, {
      hint: 'The spec layout spreads the keys of one lock over several slots, where no script can reach them together.',
    });
  return chosen;
}

function validateRedis(redis: unknown): RedisConnectionOptions {
  if (typeof redis === 'string') return validateUrl(redis);
  if (isRedisClient(redis)) {
    refuseOtherClients(redis);
    refuseStringNumbers(redis.options, 'pass `client.duplicate({ stringNumbers: false })`');
    return redis as RedisConnectionOptions;
  }
  if (isClusterOptions(redis)) {
    knownOptions('redis', redis, ['nodes', 'options']);
    if (!Array.isArray(redis.nodes) || redis.nodes.length === 0)
      throw invalidOption('redis.nodes', 'a list of at least one node', redis.nodes);
    refuseStringNumbers(redis.options);
    return redis;
  }
  if (typeof redis !== 'object' || redis === null || Array.isArray(redis))
    throw invalidOption('redis', 'a URL, ioredis options, an ioredis client or { nodes }', redis);
  const { host, port } = redis as { host?: unknown; port?: unknown };
  if (host !== undefined && typeof host !== 'string') throw invalidOption('redis.host', 'a string', host);
  if (port !== undefined) integer('redis.port', Number(port), 1, 65_535);
  refuseStringNumbers(redis);
  return redis;
}

/** By shape: the package `redis` says `evalSha` (`send_command` before its version 4), and defines no commands. */
function refuseOtherClients(client: RedisClient & { evalSha?: unknown; send_command?: unknown }): void {
  if (typeof client.defineCommand === 'function') return;
  if (typeof client.evalSha !== 'function' && typeof client.send_command !== 'function') return;
  throw new SyncGuardConfigError('redis must not be a client of the package `redis` (node-redis).', {
    hint: 'SyncGuard speaks through ioredis: pass a URL, ioredis options, or a client that ioredis made.',
  });
}

function refuseStringNumbers(options: RedisClient['options'], instead = 'leave it out'): void {
  if (!options?.stringNumbers && !options?.redisOptions?.stringNumbers) return;
  throw new SyncGuardConfigError('redis must not have the option `stringNumbers`.', {
    hint: `Scripts reply integers, which it turns into text: ${instead}.`,
  });
}

/** The URL itself is never quoted: it may hold a password. */
function validateUrl(url: string): string {
  const wrong = (what: string): SyncGuardConfigError =>
    new SyncGuardConfigError(`redis must be a URL like redis://user:password@host:6379/0, but ${what}.`, {
      hint: 'The value is not shown, as it may hold a password. "/" and "@" in a password must be percent-encoded.',
    });
  if (url.startsWith('/')) return url;
  if (url === '') throw wrong('it is empty; leave the option out for the memory backend');
  if (!URL.canParse(url)) throw wrong(`it cannot be parsed (${describe(url)})`);
  const { protocol, hostname, pathname } = new URL(url);
  if (protocol !== 'redis:' && protocol !== 'rediss:') throw wrong(`its scheme is "${protocol}//"`);
  if (hostname === '') throw wrong('it names no host');
  if (!/^\/?\d*$/.test(pathname)) throw wrong('its path is not a database number');
  return url;
}
