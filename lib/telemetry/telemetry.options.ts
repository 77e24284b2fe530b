import { SyncGuardConfigError } from '../syncguard.errors.js';
import { invalidOption, knownOptions } from '../validate.js';
import type { SyncGuardEvent } from './telemetry.types.js';

/** Who is told of every operation, and how much. */
export interface TelemetryOptions {
  /**
   * Called once for every operation, before its caller gets the answer, in the caller's async context. It must be
   * quick; a promise that it gives is not waited for. What it throws or rejects with is warned of, at most once a
   * minute, and harms nothing else.
   */
  onEvent(event: SyncGuardEvent): void | Promise<void>;
  /**
   * Put `key` and `lockId` into events: always, or where the function says true. Whoever reads a lockId can release
   * its lock. Default: false.
   */
  includeRaw?: boolean | ((event: SyncGuardEvent) => boolean);
  /**
   * Makes hashes HMAC-SHA-256 (64 hex digits): without it a short key is found by trying. All processes whose events
   * are compared need the same one. Default: none; then they are `hashKey`'s.
   */
  hashSecret?: string;
}

export interface ResolvedTelemetryOptions {
  readonly onEvent: (event: SyncGuardEvent) => unknown;
  readonly includeRaw: (event: SyncGuardEvent) => unknown;
  readonly hashSecret: string | undefined;
}

/** The `telemetry` group of the module's options, if there is one. */
export function resolveTelemetryOptions(options: unknown): ResolvedTelemetryOptions {
  const given = knownOptions('telemetry', options, ['onEvent', 'includeRaw', 'hashSecret']);
  const { onEvent, includeRaw = false, hashSecret } = given;
  if (typeof onEvent !== 'function') throw invalidOption('telemetry.onEvent', 'a function', onEvent);
  if (typeof includeRaw !== 'boolean' && typeof includeRaw !== 'function')
    throw invalidOption('telemetry.includeRaw', 'true, false or a function', includeRaw);
  if (hashSecret !== undefined && (typeof hashSecret !== 'string' || hashSecret === ''))
    throw new SyncGuardConfigError('telemetry.hashSecret must be a string that is not empty.');
  return {
    onEvent: onEvent.bind(given) as ResolvedTelemetryOptions['onEvent'],
    includeRaw: (typeof includeRaw === 'function'
      ? includeRaw.bind(given)
      : () => includeRaw) as ResolvedTelemetryOptions['includeRaw'],
    hashSecret,
  };
}
