import type { RedisClient } from './redis.client.js';
import { RedisFault, toRedisFault } from './redis.errors.js';

interface Waiter {
  resolve(): void;
  reject(fault: RedisFault): void;
}

/**
 * Knows whether a client can take a command now, and why not: a command is sent only on a ready connection,
 * never parked in an offline queue where it would run long after its caller had given up.
 */
export class RedisReadiness {
  /** Counts lost connections: a reply that came over another connection than its command may be a replay's. */
  epoch = 0;
  #lastError: unknown;
  #waiters = new Set<Waiter>();
  readonly #listeners: Record<string, (...args: unknown[]) => void> = {
    error: (error: unknown) => (this.#lastError = error),
    close: () => this.epoch++,
    ready: () => {
      this.#lastError = undefined;
      this.#settle((waiter) => waiter.resolve());
    },
    end: () => this.#settle((waiter) => waiter.reject(this.fault())),
  };

  constructor(private readonly client: RedisClient) {
    for (const [event, listener] of Object.entries(this.#listeners)) client.on?.(event, listener);
  }

  /** A client without a status (a mock) is taken as ready. */
  get ready(): boolean {
    const { status } = this.client;
    return status === 'ready' || status === undefined;
  }

  /** Resolves when the client is ready; connects a lazy one. Rejects once it is closed for good. */
  wait(): { ready: Promise<void>; cancel(): void } {
    if (this.client.status === 'end') return { ready: Promise.reject(this.fault()), cancel: () => {} };
    // The error of a failed first connect also comes as an 'error' event, where it is kept.
    if (this.client.status === 'wait') this.client.connect?.().catch(() => {});
    let waiter!: Waiter;
    const ready = new Promise<void>((resolve, reject) => {
      waiter = { resolve, reject };
      this.#waiters.add(waiter);
    });
    return { ready, cancel: () => this.#waiters.delete(waiter) };
  }

  /** Why the client is not ready: what the last connection attempt said. */
  fault(): RedisFault {
    const last = this.#lastError === undefined ? undefined : toRedisFault(this.#lastError);
    if (last?.code === 'AuthFailed')
      return new RedisFault('AuthFailed', last.summary, { hint: last.hint, cause: last.cause });
    return new RedisFault('ServiceUnavailable', 'Redis cannot be reached.', {
      hint:
        this.client.status === 'end'
          ? 'The client was closed: SyncGuard cannot be used after the app or its client has shut down.'
          : 'Check the address in the `redis` option and that the server runs; SyncGuard reconnects by itself.',
      cause: last?.cause,
    });
  }

  close(): void {
    for (const [event, listener] of Object.entries(this.#listeners)) this.client.off?.(event, listener);
    this.#settle((waiter) => waiter.reject(this.fault()));
  }

  #settle(settle: (waiter: Waiter) => void): void {
    const waiters = this.#waiters;
    this.#waiters = new Set();
    for (const waiter of waiters) settle(waiter);
  }
}
