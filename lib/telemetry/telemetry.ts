import { everyMinute } from '../core/every-minute.js';
import { hashUnder, showHashesBy } from '../core/keys.js';
import { MAX_KEY_BYTES } from '../core/validate.js';
import type { ResolvedTelemetryOptions } from './telemetry.options.js';
import type { Emit, SyncGuardEvent } from './telemetry.types.js';

const MAX_SHOWN = 200;
const MAX_KEYS = 32;

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
  const failed = listenerFailed(warn);

  return ({ keys, key: only, lockId, reason, ...rest }) => {
    const key = keys?.length === 1 ? keys[0] : only;
    const raw = { ...named('key', key), ...named('lockId', lockId), ...several(keys) };
    const event = {
      ...rest,
      ...named('reason', reason),
      ...(raw.key === undefined ? {} : { keyHash: hash(raw.key) }),
      ...(raw.keys === undefined ? {} : { keyHashes: raw.keys.map(hash) }),
      ...(raw.lockId === undefined ? {} : { lockIdHash: hash(raw.lockId) }),
    } as SyncGuardEvent;
    const isRaw = callListener(() => includeRaw(event), failed) === true;
    callListener(() => onEvent(isRaw ? { ...event, ...raw } : event), failed);
  };
}

/** Keeps strings that can be a key or an id. A call that was refused for its arguments may have passed anything. */
const named = <Name extends string>(name: Name, value: unknown): { [_ in Name]?: string } =>
  typeof value === 'string' && value.length <= MAX_KEY_BYTES
    ? ({ [name]: value } as Record<Name, string>)
    : {};

const several = (keys: readonly unknown[] = []): { keys?: string[] } =>
  keys.length > 1 && keys.length <= MAX_KEYS
    ? { keys: keys.flatMap((key) => Object.values(named('key', key))) }
    : {};

/** Calls a listener. Errors and rejections end here and are passed to `failed`. */
function callListener(listener: () => unknown, failed: (error: unknown) => void): unknown {
  try {
    const returned = listener();
    if (typeof returned === 'object' && returned !== null) Promise.resolve(returned).catch(failed);
    return returned;
  } catch (error) {
    failed(error);
    return undefined;
  }
}

function listenerFailed(warn: (message: string) => void): (error: unknown) => void {
  const warnEveryMinute = everyMinute(warn);
  return (error) =>
    warnEveryMinute(
      `TELEMETRY_LISTENER_FAILED: The listener \`telemetry.onEvent\` or \`includeRaw\` failed. Nothing else is affected. ${show(error)}`,
    );
}

function show(error: unknown): string {
  try {
    return String(error).slice(0, MAX_SHOWN);
  } catch {
    return 'The error cannot be shown.';
  }
}
