import { Logger } from '@nestjs/common';
import type { Backends } from '../assembly/backends.js';
import { observedBackends } from '../assembly/observed-backends.js';
import type { RedisConnection } from '../assembly/redis-connection.js';
import { ScriptLoader } from '../assembly/script-loader.js';
import { createTelemetry } from '../telemetry/telemetry.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { type ResolvedSyncGuardOptions, resolveOptions, type SyncGuardOptions } from './syncguard.options.js';

/** The token of the {@link Parts}. Made by Symbol.for, so that a CommonJS and an ES module copy of this package share it. */
export const SYNCGUARD_PARTS = Symbol.for('syncguard:parts');

/** What the services of an app are made of. */
export interface Parts {
  readonly options: Omit<ResolvedSyncGuardOptions, 'redis' | 'telemetry'>;
  /** Undefined in memory. */
  readonly connection: RedisConnection | undefined;
  /** The secret of hashes that others may see. It stays in a function, so that nothing shows it. */
  hashSecret(): string | undefined;
  /** Reports operations to the listener. Undefined without one. */
  readonly emit: Emit | undefined;
  readonly backends: Backends;
}

const logger = new Logger('SyncGuard');
export const warn = (message: string): void => logger.warn(message);

/**
 * Checks the options, and opens the connection.
 *
 * Code of Redis and of memory is loaded where it is used. So the package loads fast, and ioredis not at all in memory.
 *
 * @param given - takes the place of the backends of the options, for tests
 */
export async function makeParts(userOptions: SyncGuardOptions, given?: Backends): Promise<Parts> {
  // Connection and secrets stay here, so that nothing shows them.
  const { redis, telemetry, ...options } = resolveOptions(userOptions);
  const { lock } = options;
  const connection = await openConnection({ ...options, redis });
  const backends = given ?? (await backendsOf(options, connection));
  if (lock.fair && connection?.runner.readiness.ready) await backends.lock.prepare?.();
  const emit = telemetry && createTelemetry(telemetry, warn);
  const hashSecret = (): string | undefined => telemetry?.hashSecret;
  return { options, connection, hashSecret, emit, backends: observedBackends(backends, emit) };
}

async function backendsOf(
  options: Parts['options'],
  connection: RedisConnection | undefined,
): Promise<Backends> {
  if (!connection) return (await import('../assembly/memory-backends.js')).memoryBackends(options);
  return (await import('../assembly/redis-backends.js')).redisBackends(connection.runner, options, warn);
}

/** Makes the loader of all scripts. */
export async function scriptLoader(connection: RedisConnection | undefined): Promise<ScriptLoader> {
  const { allScripts } = await import('../assembly/all-scripts.js');
  return new ScriptLoader(allScripts, connection?.runner);
}

async function openConnection(
  options: Parts['options'] & Pick<ResolvedSyncGuardOptions, 'redis'>,
): Promise<RedisConnection | undefined> {
  const { redis } = options;
  if (redis === undefined) {
    const message =
      'MEMORY_BACKEND: SyncGuard runs in memory, so this process shares nothing with others. Set the option `redis` to share.';
    if (process.env.NODE_ENV === 'production') warn(message);
    else logger.log(message);
    return undefined;
  }
  const { RedisConnection } = await import('../assembly/redis-connection.js');
  const connection = new RedisConnection({ ...options, redis, warn });
  (await scriptLoader(connection)).load();
  const { fault, warnings } = await connection.opened();
  if (fault)
    warn(
      `REDIS_UNAVAILABLE: The app starts without Redis (${fault.code}): ${fault.message} ${causeOf(fault)}`.trim(),
    );
  for (const warning of warnings) warn(warning);
  return connection;
}

/** Returns the message of the server or the system. It names the address, never the password. */
const causeOf = ({ cause }: { cause?: unknown }): string => {
  const message = (cause as { message?: unknown } | undefined)?.message;
  return typeof message === 'string' ? `(${message})` : '';
};
