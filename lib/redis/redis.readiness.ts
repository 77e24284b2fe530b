import { connectionsOf, type RedisClient } from './redis.client.js';
import {
  connectingFault,
  isNoDatabase,
  RedisFault,
  toRedisFault,
  UNREACHABLE_BY_TLS_HINT,
  UNREACHABLE_HINT,
} from './redis.errors.js';

const CLOSED_HINT =
  'The client was closed. SyncGuard cannot be used after the app or its client has shut down.';

interface Waiter {
  resolve(): void;
  reject(fault: RedisFault): void;
}

type Listeners = Readonly<Record<string, (...args: never[]) => void>>;

/**
 * Knows whether a client can take a command now, and why not. Commands are sent only on a ready connection.
 * In an offline queue they could run long after their callers had given up.
 */
export class RedisReadiness {
  /**
   * The number of connections that were lost so far, on a Cluster those of its nodes too. If it has changed between a
   * command and its reply, the client may have sent the command twice.
   */
  epoch = 0;
  /**
   * Are called when a lost connection is back. Also when that of a Cluster's node is lost: only the next call for the
   * node connects again.
   */
  readonly #onBack: (() => void)[] = [];
  #seenEpoch = 0;
  /** Whether a node was connected since the last loss was told. A node that cannot be reached is told of once. */
  #mayLose = true;
  #lastError: unknown;
  /** Set if the server does not have the database of the options. A command would then run on database 0. */
  #noDatabase: RedisFault | undefined;
  #waiters = new Set<Waiter>();
  readonly #listeners: Listeners = {
    connecting: () => (this.#noDatabase = undefined),
    error: (error: unknown) => this.#onError(error),
    close: () => this.epoch++,
    ready: () => this.#onReady(),
    end: () => this.#settle((waiter) => waiter.reject(this.fault())),
    '+node': (node: RedisClient) => this.#watchNode(node),
  };
  readonly #nodeListeners: Listeners = {
    close: () => this.#onNodeLost(),
    ready: () => {
      this.#mayLose = true;
      this.#onConnected();
    },
  };

  readonly #client: RedisClient;

  constructor(client: RedisClient) {
    this.#client = client;
    listen(client, 'on', this.#listeners);
    if (client.isCluster) for (const node of connectionsOf(client)) this.#watchNode(node);
  }

  /** A client without a status (a mock) counts as ready. */
  get ready(): boolean {
    const { status } = this.#client;
    return (status === 'ready' || status === undefined) && !this.#noDatabase;
  }

  /** Adds a function that is called when a lost connection is back. */
  onBack(listener: () => void): void {
    this.#onBack.push(listener);
  }

  /** Connects a lazy client. `ready` rejects once the client is closed for good, or if the database does not exist. */
  wait(): { ready: Promise<void>; cancel(): void } {
    if (this.#client.status === 'end' || this.#noDatabase)
      return { ready: Promise.reject(this.fault()), cancel: () => {} };
    // The error of a failed first connect is also emitted as an 'error' event, whose listener keeps it.
    if (this.#client.status === 'wait') this.#client.connect?.().catch(() => {});
    let waiter!: Waiter;
    const ready = new Promise<void>((resolve, reject) => {
      waiter = { resolve, reject };
      this.#waiters.add(waiter);
    });
    return { ready, cancel: () => this.#waiters.delete(waiter) };
  }

  /**
   * Returns why the client is not ready. The reason is the error of its last attempt to connect. With `closed` in its
   * context no wait helps: the client does not connect again by itself.
   */
  fault(): RedisFault {
    const { status, options } = this.#client;
    const closed = status === 'end';
    const context = closed ? { closed } : {};
    const known = this.#noDatabase ?? connectingFault(this.#lastError);
    if (known)
      return new RedisFault(known.code, known.summary, { hint: known.hint, cause: known.cause, context });
    // A port without TLS does not answer a TLS greeting but waits for more, so no error names this mistake.
    const hint = closed ? CLOSED_HINT : options?.tls ? UNREACHABLE_BY_TLS_HINT : UNREACHABLE_HINT;
    const cause = this.#lastError === undefined ? undefined : toRedisFault(this.#lastError).cause;
    return new RedisFault('ServiceUnavailable', 'Redis cannot be reached.', { hint, cause, context });
  }

  /** Refuses all calls until the client connects anew, because the database of the options does not exist. */
  refuseDatabase(error: unknown): void {
    this.#onError(error);
    this.#onReady();
  }

  close(): void {
    listen(this.#client, 'off', this.#listeners);
    if (this.#client.isCluster)
      for (const node of connectionsOf(this.#client)) listen(node, 'off', this.#nodeListeners);
    this.#settle((waiter) => waiter.reject(this.fault()));
  }

  #onError(error: unknown): void {
    this.#lastError = error;
    if (isNoDatabase(error)) this.#noDatabase = toRedisFault(error);
  }

  #onReady(): void {
    if (this.#noDatabase) return this.#settle((waiter) => waiter.reject(this.fault()));
    this.#lastError = undefined;
    this.#settle((waiter) => waiter.resolve());
    this.#onConnected();
  }

  #onConnected(): void {
    if (this.epoch === this.#seenEpoch) return;
    this.#seenEpoch = this.epoch;
    this.#tell();
  }

  #onNodeLost(): void {
    this.epoch++;
    if (!this.#mayLose) return;
    this.#mayLose = false;
    this.#tell();
  }

  #tell(): void {
    for (const listener of this.#onBack) listener();
  }

  /** A Cluster emits an event for a removed node, but none for a node that reconnects by itself. */
  #watchNode(node: RedisClient): void {
    listen(node, 'off', this.#nodeListeners);
    listen(node, 'on', this.#nodeListeners);
  }

  #settle(settle: (waiter: Waiter) => void): void {
    const waiters = this.#waiters;
    this.#waiters = new Set();
    for (const waiter of waiters) settle(waiter);
  }
}

function listen(client: RedisClient, onOrOff: 'on' | 'off', listeners: Listeners): void {
  for (const [event, listener] of Object.entries(listeners))
    client[onOrOff]?.(event, listener as (...args: unknown[]) => void);
}
