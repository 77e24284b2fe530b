import { AsyncResource } from 'node:async_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { connectionsOf, type RedisClient } from './redis.client.js';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 2_000;
/** How long after a refusal the subscriber does not try again, in ms. An ACL may be changed while the app runs. */
const REFUSED_FOR_MS = 60_000;
const PATIENCE_MS = 1_000;
/** After this time without a message it asks the server, in ms. */
const ASK_AFTER_MS = 1_200;
/** When the answer takes longer, nobody relies on the connection until it comes, in ms. */
const SILENT_AFTER_MS = 400;
/** When it takes longer still, the connection is closed, and opened again. */
const CLOSED_AFTER_MS = 2_000;

// The options of the copy that differ from those of the client. ioredis does not reconnect the copy. The subscriber
// makes a new one, because a Cluster may have other nodes after a loss. The client's settings for retries, pipelining
// and prefixes do not suit a subscription.
const OPTIONS = {
  lazyConnect: true,
  retryStrategy: () => null,
  sentinelRetryStrategy: () => null,
  sentinelCommandTimeout: PATIENCE_MS,
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

/** Who waits for messages. */
export interface Listener {
  /** Called with each message but the empty one, which is only a sign of life. */
  onMessage(message: string): void;
  /** Called when it begins to be heard. Messages that were published before are lost. */
  onListening?(): void;
  /** Called when nothing was heard for some time, although the server was asked. */
  onSilence?(): void;
  /** Returns whether somebody waits: then a lost connection is opened again, and silence matters. */
  isNeeded(): boolean;
}

/**
 * Listens to channels over a connection of its own. The connection is a copy of the client, or of one master of a
 * Cluster, and is opened when it is first needed. It does not keep the process alive, and closes together with the client.
 */
export class RedisSubscriber {
  readonly #client: RedisClient;
  #connection: RedisClient | undefined;
  #opening: Promise<boolean> | undefined;
  #refusedUntilMs = -Infinity;
  isListening = false;
  /** False while the connection is silent, though it should not be. */
  isHeard = false;
  #heardMs = 0;
  /** When it was asked for a sign of life that has not come yet. */
  #askedMs: number | undefined;
  #watch: NodeJS.Timeout | undefined;
  #isClosed = false;
  // All calls share the connection, so it must not run in the async context of the call that opened it.
  readonly #context = new AsyncResource('SyncGuardSubscriber');

  constructor(
    client: RedisClient,
    private readonly channels: readonly string[],
    private readonly events: Required<Listener>,
  ) {
    this.#client = client;
    client.on?.('end', () => this.pause());
  }

  /** True for a while after the ACL has refused SUBSCRIBE. */
  get isRefused(): boolean {
    return performance.now() < this.#refusedUntilMs;
  }

  /** Resolves to true once it listens. Resolves to false if the server cannot be reached now, or refuses SUBSCRIBE. */
  open(): Promise<boolean> {
    if (this.isListening) return Promise.resolve(true);
    if (this.#isClosed || this.isRefused) return Promise.resolve(false);
    this.#opening ??= this.#context
      .runInAsyncScope(() => this.#open())
      .finally(() => (this.#opening = undefined));
    return this.#opening;
  }

  /**
   * Call this while somebody relies on messages. A network may forget a connection without telling anybody, so one that is
   * silent is asked for a sign of life, once in a second.
   */
  watch(): void {
    if (this.#watch || !this.isListening) return;
    this.#heard(); // What was before did not matter.
    this.#arm();
  }

  /** Closes the connection until the next `open()`. */
  pause(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    this.isListening = this.isHeard = false;
    clearTimeout(this.#watch);
    this.#watch = undefined;
    connection?.disconnect?.();
  }

  close(): void {
    this.#isClosed = true;
    this.pause();
  }

  async #open(): Promise<boolean> {
    const connection = copyOf(this.#client);
    if (!connection) return false;
    this.#connection = connection;
    connection.on?.('error', () => {}); // An 'end' follows and is handled. Without this listener Node would throw.
    connection.on?.('end', () => this.#onEnd(connection));
    connection.on?.('message', (_, message) => {
      this.#heard();
      if (message !== '') this.events.onMessage(message as string);
    });
    try {
      await connection.connect?.();
      connection.stream?.unref?.();
      await connection.subscribe?.(...this.channels);
    } catch (error) {
      if (isRefusal(error)) this.#refusedUntilMs = performance.now() + REFUSED_FOR_MS;
      if (this.#connection === connection) this.#connection = undefined;
      connection.disconnect?.();
      return false;
    }
    if (this.#connection !== connection) return false;
    this.isListening = this.isHeard = true;
    this.events.onListening();
    this.watch();
    return true;
  }

  #heard(): void {
    this.#heardMs = performance.now();
    this.isHeard = true;
    this.#askedMs = undefined;
  }

  #arm(): void {
    const dueMs =
      this.#askedMs === undefined
        ? this.#heardMs + ASK_AFTER_MS
        : this.#askedMs + (this.isHeard ? SILENT_AFTER_MS : CLOSED_AFTER_MS);
    const delayMs = Math.max(1, dueMs - performance.now());
    // After a blocked event loop messages may wait unread in the socket. `setImmediate` lets Node read them first.
    const look = (): unknown => setImmediate(() => this.#look());
    this.#watch = this.#context.runInAsyncScope(() => setTimeout(look, delayMs).unref());
  }

  #look(): void {
    this.#watch = undefined;
    if (!this.isListening || !this.events.isNeeded()) return;
    const nowMs = performance.now();
    if (this.#askedMs === undefined) {
      if (nowMs >= this.#heardMs + ASK_AFTER_MS) this.#ask(nowMs);
    } else if (nowMs >= this.#askedMs + CLOSED_AFTER_MS) {
      this.#connection?.disconnect?.();
      return;
    } else if (this.isHeard && nowMs >= this.#askedMs + SILENT_AFTER_MS) {
      this.isHeard = false;
      this.events.onSilence();
    }
    this.#arm();
  }

  #ask(nowMs: number): void {
    this.#askedMs = nowMs;
    // A node that has left its Cluster answers a PING, and hears no message any more. So there a message is sent.
    if (this.#client.isCluster)
      this.#client
        .publish?.(this.channels[0] as string, '')
        .catch((error) => isRefusal(error) && this.#ping());
    else this.#ping();
  }

  #ping(): void {
    this.#connection?.ping?.().then(
      () => this.#heard(),
      () => {}, // It goes on to be silent.
    );
  }

  #onEnd(connection: RedisClient): void {
    if (this.#connection !== connection) return;
    this.pause();
    if (!this.#isClosed) void this.#reopen();
  }

  async #reopen(): Promise<void> {
    for (let pauseMs = FIRST_PAUSE_MS; this.events.isNeeded(); pauseMs *= 2) {
      await sleep(Math.min(pauseMs, LONGEST_PAUSE_MS), undefined, { ref: false });
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
