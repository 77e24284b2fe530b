import { everyMinute } from '../core/every-minute.js';
import { safely } from '../core/foreign-values.js';
import { hashUnder, showHashesBy } from '../core/keys.js';
import { MAX_KEY_BYTES } from '../core/validate.js';
import type { ResolvedTelemetryOptions } from './telemetry.options.js';
import type { Emit, Observation, SyncGuardEvent } from './telemetry.types.js';

const MAX_SHOWN = 200;
const MAX_KEYS = 32;

type Fields = Record<string, unknown>;

/**
 * Returns the function that turns observations into events and calls the listener.
 *
 * @param warn - called at most once a minute while the listener fails
 */
export function createTelemetry(
  { onEvent, includeRaw, hashSecret }: ResolvedTelemetryOptions,
  warn: (message: string) => void,
): Emit {
  const hash = hashUnder(hashSecret);
  if (hashSecret !== undefined) showHashesBy(hash);
  const warnEveryMinute = everyMinute(warn);
  const failed = (error: unknown): void =>
    warnEveryMinute(
      `TELEMETRY_LISTENER_FAILED: The listener \`telemetry.onEvent\` or \`includeRaw\` failed. Nothing else is affected. ${shown(error)}`,
    );

  return (observed) => {
    const { feature, type, result, durationMs } = observed;
    const event: Fields = { feature, type, result, durationMs };
    const raw = rawOf(observed);
    // To spread an object into another one would take longer than all the rest.
    for (const name in observed) if (!(name in raw)) add(event, name, (observed as object as Fields)[name]);
    if (raw.key !== undefined) event['keyHash'] = hash(raw.key);
    if (raw.keys !== undefined) event['keyHashes'] = raw.keys.map((key) => hash(key));
    if (raw.lockId !== undefined) event['lockIdHash'] = hash(raw.lockId);
    const isRaw = includeRaw === true || (includeRaw && call(includeRaw, event, failed) === true);
    const told = isRaw ? { ...event } : event;
    if (isRaw) for (const [name, value] of Object.entries(raw)) add(told, name, value);
    call(onEvent, told, failed);
  };
}

function add(event: Fields, name: string, value: unknown): void {
  if (value !== undefined) event[name] = value;
}

/** Returns what only `includeRaw` shows. A call that was refused for its arguments may have passed anything as its keys. */
function rawOf({ keys, key, lockId }: Observation): Pick<Observation, 'key' | 'keys' | 'lockId'> {
  const all: readonly unknown[] = Array.isArray(keys) ? keys : [key];
  const only = all.length === 1 ? all[0] : undefined;
  return {
    key: isName(only) ? only : undefined,
    keys: all.length > 1 && all.length <= MAX_KEYS ? all.filter(isName) : undefined,
    lockId: isName(lockId) ? lockId : undefined,
  };
}

const isName = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= MAX_KEY_BYTES;

/** Calls a listener. Errors and rejections end here and are passed to `failed`. */
function call(
  listener: (event: SyncGuardEvent) => unknown,
  event: Fields,
  failed: (error: unknown) => void,
): unknown {
  try {
    const returned = listener(event as object as SyncGuardEvent);
    if (typeof returned === 'object' && returned !== null) Promise.resolve(returned).catch(failed);
    return returned;
  } catch (error) {
    failed(error);
    return undefined;
  }
}

const shown = (error: unknown): string =>
  safely(() => String(error).slice(0, MAX_SHOWN)) ?? 'The error cannot be shown.';
