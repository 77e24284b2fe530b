/** How many calls may wait: for one key, and in the process. */
export interface ResolvedMaxWaiting {
  readonly perKey: number;
  readonly perProcess: number;
}

/** Counts the calls of this process that stand in a queue, so that there are never more than `maxWaiting` allows. */
export class WaitingRoom {
  readonly #byKey = new Map<string, number>();
  #all = 0;

  constructor(private readonly max: ResolvedMaxWaiting) {}

  /** As many calls wait for one of these keys as may wait for it. */
  isFullFor(keys: readonly string[]): boolean {
    return keys.some((key) => (this.#byKey.get(key) ?? 0) >= this.max.perKey);
  }

  /** Somebody waits for one of these keys. */
  isAwaited(keys: readonly string[]): boolean {
    return keys.some((key) => this.#byKey.has(key));
  }

  /** As many calls wait as may wait in the process. */
  get isFull(): boolean {
    return this.#all >= this.max.perProcess;
  }

  enter(keys: readonly string[]): void {
    this.#all++;
    for (const key of keys) this.#byKey.set(key, (this.#byKey.get(key) ?? 0) + 1);
  }

  leave(keys: readonly string[]): void {
    this.#all--;
    for (const key of keys) {
      const left = (this.#byKey.get(key) ?? 0) - 1;
      if (left > 0) this.#byKey.set(key, left);
      else this.#byKey.delete(key);
    }
  }
}
