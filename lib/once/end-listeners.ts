/** Those of this process who wait for the end of a run. */
export class EndListeners {
  readonly #listeners = new Map<string, Set<() => void>>();

  get size(): number {
    return this.#listeners.size;
  }

  /** Returns the function that removes the listener. */
  add(name: string, listener: () => void): () => void {
    const all = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, all.add(listener));
    return () => {
      if (all.delete(listener) && all.size === 0) this.#listeners.delete(name);
    };
  }

  tell(name: string): void {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) listener();
  }
}
