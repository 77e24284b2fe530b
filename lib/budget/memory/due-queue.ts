interface Due {
  readonly name: string;
  readonly atMs: number;
  /** How many entries were set before this one. */
  readonly turn: number;
}

const COMPACT_ABOVE = 64;

/** A queue of names by their due time. Names that are due at the same time keep the order in which they were set. */
export class DueQueue {
  readonly #dues = new Map<string, Due>();
  #turn = 0;
  /** A binary heap. An entry that was replaced or removed stays in it until it comes up. */
  #heap: Due[] = [];

  get size(): number {
    return this.#dues.size;
  }

  at(name: string): number | undefined {
    return this.#dues.get(name)?.atMs;
  }

  set(name: string, atMs: number): void {
    const due = { name, atMs, turn: this.#turn++ };
    this.#dues.set(name, due);
    this.#push(due);
    if (this.#heap.length > 2 * this.#dues.size + COMPACT_ABOVE) this.#compact();
  }

  delete(name: string): void {
    this.#dues.delete(name);
  }

  names(): IterableIterator<string> {
    return this.#dues.keys();
  }

  /** Returns when the first name is due, or Infinity if there is none. */
  nextMs(): number {
    return this.#first()?.atMs ?? Infinity;
  }

  /** Removes and returns the first name if it is due. */
  take(nowMs: number): Due | undefined {
    const first = this.#first();
    if (!first || first.atMs > nowMs) return undefined;
    this.#pop();
    this.#dues.delete(first.name);
    return first;
  }

  #first(): Due | undefined {
    let first = this.#heap[0];
    while (first && this.#dues.get(first.name) !== first) {
      this.#pop();
      first = this.#heap[0];
    }
    return first;
  }

  #push(due: Due): void {
    const heap = this.#heap;
    let at = heap.push(due) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(due, heap[parent] as Due)) break;
      heap[at] = heap[parent] as Due;
      at = parent;
    }
    heap[at] = due;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop() as Due;
    if (heap.length === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1] as Due, heap[child] as Due)) child++;
      if (!isBefore(heap[child] as Due, last)) break;
      heap[at] = heap[child] as Due;
      at = child;
    }
    heap[at] = last;
  }

  #compact(): void {
    // A sorted list is a heap.
    this.#heap = [...this.#dues.values()].sort((a, b) => (isBefore(a, b) ? -1 : 1));
  }
}

const isBefore = (a: Due, b: Due): boolean => a.atMs < b.atMs || (a.atMs === b.atMs && a.turn < b.turn);
