import { AsyncResource } from 'node:async_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { connectionsOf, type RedisClient } from './redis.client.js';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 2_000;
/** An ACL may be changed: what it refuses is asked for again after so long. */
const REFUSED_FOR_MS = 60_000;
const PATIENCE_MS = 1_000;

// It is opened anew here, on whatever node there is then; and what a user's client says of commands is not for it.
const OPTIONS = {
  lazyConnect: true,
  retryStrategy: () => null,
  sentinelRetryStrategy: () => null,
  reconnectOnError: null,
  autoResubscribe: false,
  autoResendUnfulfilledCommands: false,
  enableOfflineQueue: false,
  enableAutoPipelining: false,
  maxRetriesPerRequest: 0,
  commandTimeout: PATIENCE_MS,
  readOnly: false,
  keyPrefix: '',
  connectionName: 'syncguard-waiting',
  disconnectTimeout: 100,
};

export interface SubscriberEvents {
  onMessage(message: string): void;
  /** It listens, and did not before: what was published meanwhile is lost. */
  onListening(): void;
  /** Whether it should be opened again when it was lost. */
  isNeeded(): boolean;
}

/**
 * A connection that listens to one channel: a copy of the client, or of one of a Cluster's nodes, opened on first need.
 * It keeps no process alive, and ends with its client.
 */
export class RedisSubscriber {
  #connection: RedisClient | undefined;
  #opening: Promise<boolean> | undefined;
  #refusedUntilMs = -Infinity;
  #isListening = false;
  #isChecking = false;
  #isClosed = false;
  // It is everybody's: it must not run in the async context of the one who happened to open it.
  readonly #context = new AsyncResource('SyncGuardSubscriber');

  constructor(
    private readonly client: RedisClient,
    private readonly channel: string,
    private readonly events: SubscriberEvents,
  ) {
    client.on?.('end', () => this.pause());
  }

  get isListening(): boolean {
    return this.#isListening;
  }

  /** The server does not allow it. */
  get isRefused(): boolean {
    return performance.now() < this.#refusedUntilMs;
  }

  /** Resolves whether it listens: not if the server cannot be reached just now, or refuses SUBSCRIBE. */
  open(): Promise<boolean> {
    if (this.#isListening) return Promise.resolve(true);
    if (this.#isClosed || this.isRefused) return Promise.resolve(false);
    this.#opening ??= this.#context
      .runInAsyncScope(() => this.#open())
      .finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  /** Something should have been heard and was not: a connection over which no answer comes is given up. */
  suspect(): void {
    const connection = this.#connection;
    if (!connection || this.#isChecking) return;
    this.#isChecking = true;
    void Promise.resolve(connection.ping?.())
      .catch(() => connection.disconnect?.())
      .finally(() => (this.#isChecking = false));
  }

  /** Ends the connection, until it is opened again. */
  pause(): void {
    this.#end();
  }

  close(): void {
    this.#isClosed = true;
    this.#end();
  }

  async #open(): Promise<boolean> {
    const connection = copyOf(this.client);
    if (!connection) return false;
    this.#connection = connection;
    connection.on?.('error', () => {}); // Of no use: that it has ended is what counts.
    connection.on?.('end', () => this.#onEnd(connection));
    connection.on?.('message', (_, message) => this.events.onMessage(message as string));
    try {
      await connection.connect?.();
      connection.stream?.unref?.();
      await connection.subscribe?.(this.channel);
    } catch (error) {
      if (isRefusal(error)) this.#refusedUntilMs = performance.now() + REFUSED_FOR_MS;
      if (this.#connection === connection) this.#connection = undefined;
      connection.disconnect?.();
      return false;
    }
    if (this.#connection !== connection) return false;
    this.#isListening = true;
    this.events.onListening();
    return true;
  }

  #onEnd(connection: RedisClient): void {
    if (this.#connection !== connection) return;
    this.#end();
    if (!this.#isClosed) void this.#reopen();
  }

  #end(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    this.#isListening = false;
    connection?.disconnect?.();
  }

  async #reopen(): Promise<void> {
    for (
      let pauseMs = FIRST_PAUSE_MS;
      this.events.isNeeded();
      pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)
    ) {
      await sleep(pauseMs, undefined, { ref: false });
      if (this.#isClosed || (await this.open())) return;
    }
  }
}

function copyOf(client: RedisClient): RedisClient | undefined {
  const nodes = connectionsOf(client, 'master');
  const node = nodes[Math.floor(Math.random() * nodes.length)];
  if (typeof node?.subscribe !== 'function') return undefined;
  return node.duplicate?.(...([OPTIONS] as never[])) as RedisClient | undefined;
}

const isRefusal = (error: unknown): boolean => /\bNOPERM\b/.test((error as Error | null)?.message ?? '');
