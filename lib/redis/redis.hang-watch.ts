import { connectionsOf, type RedisClient } from './redis.client.js';

/** A connection gets at least this time to receive something, in ms, so that a server which is briefly busy keeps it. */
const LEAST_PATIENCE_MS = 1_000;

/**
 * Returns a function to call when a command was not answered in time. It closes connections that hang because the server has
 * vanished without closing them. Otherwise every command would time out for as long as the system keeps the socket. Each
 * connection is sent a PING. A connection that receives nothing is closed, and ioredis connects again. Nothing
 * is sent while calls are answered in time. A slow server sends at least something, so its connection stays.
 *
 * The option `socketTimeout` of ioredis 5 is not used for this: its timer outlives the socket and closes the
 * next one too.
 */
export function hangWatch(client: RedisClient, timeoutMs: number): () => void {
  const patienceMs = Math.max(LEAST_PATIENCE_MS, timeoutMs);
  let asked: Asked[] | undefined;
  const giveUp = (): void => {
    for (const { stream, bytesRead } of asked ?? [])
      if (stream.bytesRead === bytesRead)
        stream.destroy(
          new Error(`Redis has not answered for ${patienceMs} ms, so the connection was closed.`),
        );
    asked = undefined;
  };
  return () => {
    if (asked) return;
    asked = connectionsOf(client).flatMap(askForSignOfLife);
    // After a blocked event loop the answer may still be unread in the socket. `setImmediate` lets Node read it first.
    setTimeout(() => setImmediate(giveUp), patienceMs).unref();
  };
}

interface Asked {
  readonly stream: NonNullable<RedisClient['stream']>;
  readonly bytesRead: number;
}

function askForSignOfLife(connection: RedisClient): Asked[] {
  const { stream, status } = connection;
  // `connectTimeout` limits how long a socket may connect.
  if (!stream || stream.connecting || stream.destroyed) return [];
  // A connection that is not ready has sent its greeting, so it waits for an answer without a PING too.
  if (status === 'ready') connection.ping?.().catch(() => {});
  return [{ stream, bytesRead: stream.bytesRead }];
}
