import { connectionsOf, type RedisClient } from './redis.client.js';

/** A server that is busy with something else for less is not given up. */
const LEAST_PATIENCE_MS = 1_000;

/**
 * Gives up connections that hang: the other end has vanished and nobody was told, so that every command would time
 * out for as long as the system keeps the socket. Once a call was not answered in time, each connection is asked
 * for a sign of life; one over which nothing comes is closed, and ioredis connects anew. Idle connections are left
 * alone, and a server that is merely slow answers something.
 *
 * (ioredis' own `socketTimeout` outlives its socket in version 5, and then closes the next one too.)
 */
export class HangWatch {
  #asked = false;

  constructor(
    private readonly client: RedisClient,
    private readonly patienceMs: number,
  ) {}

  /** A call was not answered in time. */
  suspect(): void {
    if (this.#asked) return;
    this.#asked = true;
    const asked = connectionsOf(this.client).flatMap(askForSignOfLife);
    const patienceMs = Math.max(LEAST_PATIENCE_MS, this.patienceMs);
    // After a blocked event loop the sign may lie unread in the socket: it is read before this looks.
    const giveUp = (): unknown => setImmediate(() => this.#giveUp(asked, patienceMs));
    setTimeout(giveUp, patienceMs).unref();
  }

  #giveUp(asked: readonly Asked[], patienceMs: number): void {
    this.#asked = false;
    for (const { stream, bytesRead } of asked)
      if (stream.bytesRead === bytesRead)
        stream.destroy(new Error(`Redis has not answered for ${patienceMs} ms: the connection is given up.`));
  }
}

interface Asked {
  readonly stream: NonNullable<RedisClient['stream']>;
  readonly bytesRead: number;
}

function askForSignOfLife(connection: RedisClient): Asked[] {
  const { stream, status } = connection;
  // While it connects, `connectTimeout` watches over it.
  if (!stream || stream.connecting || stream.destroyed) return [];
  // In its greeting a connection is owed an answer anyway.
  if (status === 'ready') connection.ping?.().catch(() => {});
  return [{ stream, bytesRead: stream.bytesRead }];
}
