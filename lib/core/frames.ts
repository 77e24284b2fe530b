import { AsyncLocalStorage } from 'node:async_hooks';

/** Returns the storage of this name. All copies of this package in the process share it. */
export function sharedStorage<T>(name: string): AsyncLocalStorage<T> {
  const shared = globalThis as { [key: symbol]: AsyncLocalStorage<T> | undefined };
  return (shared[Symbol.for(name)] ??= new AsyncLocalStorage<T>());
}

/** What runs around the running code, such as a lock. */
export interface Frame<Self> {
  /** The nearest one around this one that was live when this one began: others would build an endless chain. */
  readonly outer: Self | undefined;
  /** False once the body has ended. Work that it left running is no longer under it. */
  active: boolean;
}

/** The frames of one kind around the running code, across all copies of this package. */
export class Frames<F extends Frame<F>> {
  readonly #storage: AsyncLocalStorage<F>;

  constructor(name: string) {
    this.#storage = sharedStorage(name);
  }

  /** Returns the innermost live frame, or the first one from `frame` on, which `accepts` takes. */
  find(accepts: (frame: F) => boolean = () => true, frame = this.#storage.getStore()): F | undefined {
    while (frame && !(frame.active && accepts(frame))) frame = frame.outer;
    return frame;
  }

  run<T>(frame: F, body: () => T): T {
    return this.#storage.run(frame, body);
  }

  /** Runs a body under a frame that ends with it. Resolves or rejects as the body does. */
  async during<T>(frame: F, body: () => T | Promise<T>): Promise<T> {
    try {
      return await this.run(frame, body);
    } finally {
      frame.active = false;
    }
  }
}
