import { SyncGuardConfigError } from '../core/errors.js';
import { invalidOption, knownOptions } from '../core/validate.js';
import type { SyncGuardEvent } from './telemetry.types.js';

/** The listener of all operations, and how much it may see. */
export interface TelemetryOptions {
  /**
   * Called once for every operation, before the caller gets the answer, in the async context of the caller. It must be
   * quick. A promise that it returns is not awaited. If it throws or rejects, a warning is logged at most once a
   * minute, and nothing else happens.
   */
  onEvent(event: SyncGuardEvent): void | Promise<void>;
  /**
   * Adds `key`, `keys` and `lockId` to events: to all, or to those for which the function returns true. Anyone who
   * reads a lockId can release its lock. Default: false.
   */
  includeRaw?: boolean | ((event: SyncGuardEvent) => boolean);
  /**
   * Any secret text. The hashes in events, errors and logs are then HMAC-SHA-256 with it (64 hex digits). Without it,
   * anyone can find the short key behind a hash by hashing guesses. All processes whose events are compared need the same
   * secret, and all apps of a process: errors and logs take the one that was set last. Default: none, then `hashKey`
   * makes the hashes.
   */
  hashSecret?: string;
}

export interface ResolvedTelemetryOptions {
  readonly onEvent: (event: SyncGuardEvent) => unknown;
  readonly includeRaw: boolean | ((event: SyncGuardEvent) => unknown);
  readonly hashSecret: string | undefined;
}

/** Checks the `telemetry` group of the module's options. */
export function resolveTelemetryOptions(options: unknown): ResolvedTelemetryOptions {
  const given = knownOptions('telemetry', options, ['onEvent', 'includeRaw', 'hashSecret']);
  const { onEvent, includeRaw = false, hashSecret } = given;
  if (typeof onEvent !== 'function') throw invalidOption('telemetry.onEvent', 'a function', onEvent);
  if (typeof includeRaw !== 'boolean' && typeof includeRaw !== 'function')
    throw invalidOption('telemetry.includeRaw', 'true, false or a function', includeRaw);
  if (hashSecret !== undefined && (typeof hashSecret !== 'string' || hashSecret === ''))
    throw new SyncGuardConfigError('telemetry.hashSecret must be a string with at least one character.');
  return {
    onEvent: onEvent.bind(given) as ResolvedTelemetryOptions['onEvent'],
    includeRaw: (typeof includeRaw === 'function'
      ? includeRaw.bind(given)
      : includeRaw) as ResolvedTelemetryOptions['includeRaw'],
    hashSecret,
  };
}
