import { connectionsOf, type RedisClient } from './redis.client.js';

/** A connection gets at least this time to receive something, in ms, so that a server which is briefly busy keeps it. */
const LEAST_PATIENCE_MS = 1_000;

/**
 * Closes connections that hang because the server has vanished without closing them. Otherwise every command
 * would time out for as long as the system keeps the socket. When a call is not answered in time, each
 * connection is sent a PING. A connection that receives nothing is closed, and ioredis connects again. Nothing
 * is sent while calls are answered in time. A slow server sends at least something, so its connection stays.
 *
 * The option `socketTimeout` of ioredis 5 is not used for this: its timer outlives the socket and closes the
 * next one too.
 */
export class HangWatch {
  readonly #client: RedisClient;
  #asked = false;

  constructor(
    client: RedisClient,
    private readonly patienceMs: number,
  ) {
    this.#client = client;
  }

  /** Call this when a command was not answered in time. */
  suspect(): void {
    if (this.#asked) return;
    this.#asked = true;
    const asked = connectionsOf(this.#client).flatMap(askForSignOfLife);
    const patienceMs = Math.max(LEAST_PATIENCE_MS, this.patienceMs);
    // After a blocked event loop the answer may still be unread in the socket. `setImmediate` lets Node read it first.
    const giveUp = (): unknown => setImmediate(() => this.#giveUp(asked, patienceMs));
    setTimeout(giveUp, patienceMs).unref();
  }

  #giveUp(asked: readonly Asked[], patienceMs: number): void {
    this.#asked = false;
    for (const { stream, bytesRead } of asked)
      if (stream.bytesRead === bytesRead)
        stream.destroy(
          new Error(`Redis has not answered for ${patienceMs} ms, so the connection was closed.`),
        );
  }
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
