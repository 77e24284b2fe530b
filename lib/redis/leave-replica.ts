import { safely } from '../core/foreign-values.js';

/** How long a connection may take to close, in ms. A refusal within this time does not reconnect again. */
const LEAVING_MS = 100;

/** Passed to a `reconnectOnError` to find out whether it would leave a replica. No server has sent this error. */
const QUESTION = new Error("READONLY You can't write against a read only replica.");

/**
 * Returns a `reconnectOnError` that reconnects when the server refuses writes because it has become a replica. The same
 * address then leads to the new primary, at once or soon. Connections that SyncGuard opens have such a function. Give
 * one to a client that you create yourself, and call `leaveReplica()` once for each client.
 *
 * The server refuses every command in flight, but only the first refusal reconnects. If every refusal did, ioredis
 * would add a listener to the socket for each, and Node would warn of a leak (`MaxListenersExceededWarning`).
 *
 * @example
 * new Redis({ host: 'redis.internal', socketTimeout: 2_000, reconnectOnError: leaveReplica() });
 */
export function leaveReplica(): (error: Error) => boolean {
  let leftMs = -Infinity;
  return (error) => {
    if (error === QUESTION) return true;
    if (!/\bREADONLY\b/.test(error.message) || performance.now() < leftMs + LEAVING_MS) return false;
    leftMs = performance.now();
    return true;
  };
}

/** Returns whether a `reconnectOnError` makes its client leave a replica. ioredis reconnects on `true`, 1 and 2 only. */
export const leavesReplica = (reconnectOnError: ((error: Error) => unknown) | null | undefined): boolean =>
  [true, 1, 2].includes(safely(() => reconnectOnError?.(QUESTION)) as never);
