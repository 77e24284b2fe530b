import { monotonicMs } from '../core/clock.js';

/** How long a connection may take to close, in ms. Refusals that arrive meanwhile do not close it again. */
const LEAVING_MS = 100;

/** The error that asks a `reconnectOnError` whether it leaves a replica. Nothing has been refused. */
const QUESTION = new Error("READONLY You can't write against a read only replica.");

/**
 * Returns a `reconnectOnError` that reconnects when the server refuses writes because it has become a replica. The
 * address leads to the new primary, now or soon. Connections of SyncGuard have it. Give it to a client that you make
 * yourself, and make one for each client.
 *
 * The server refuses every command in flight, but only the first refusal reconnects. ioredis would add a listener to the
 * socket for each of them, and Node would warn of a leak (`MaxListenersExceededWarning`).
 *
 * @example
 * new Redis({ host: 'redis.internal', socketTimeout: 2_000, reconnectOnError: leaveReplica() });
 */
export function leaveReplica(): (error: Error) => boolean {
  let leftMs = -Infinity;
  return (error) => {
    if (error === QUESTION) return true;
    if (!/\bREADONLY\b/.test(error.message) || monotonicMs() < leftMs + LEAVING_MS) return false;
    leftMs = monotonicMs();
    return true;
  };
}

/** Returns whether a `reconnectOnError` makes its client leave a replica. ioredis knows no other answers than these. */
export function leavesReplica(reconnectOnError: ((error: Error) => unknown) | null | undefined): boolean {
  try {
    return [true, 1, 2].includes(reconnectOnError?.(QUESTION) as never);
  } catch {
    return false;
  }
}
