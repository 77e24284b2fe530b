interface Due {
  readonly name: string;
  readonly atMs: number;
}

const COMPACT_ABOVE = 64;

/** A queue of names by their due time. Names that are due at the same time keep the order in which they were set. */
export class DueQueue {
  readonly #dues = new Map<string, Due>();
  /** By time, from `#first` on. An entry that was replaced or removed stays in it until it comes up. */
  #line: Due[] = [];
  #first = 0;

  get size(): number {
    return this.#dues.size;
  }

  at(name: string): number | undefined {
    return this.#dues.get(name)?.atMs;
  }

  set(name: string, atMs: number): void {
    const due = { name, atMs };
    this.#dues.set(name, due);
    let [from, to] = [this.#first, this.#line.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if ((this.#line[middle] as Due).atMs <= atMs) from = middle + 1;
      else to = middle;
    }
    this.#line.splice(from, 0, due);
    if (this.#line.length <= 2 * this.#dues.size + COMPACT_ABOVE) return;
    this.#line = this.#line.filter((each) => this.#isLive(each));
    this.#first = 0;
  }

  delete(name: string): void {
    this.#dues.delete(name);
  }

  names(): IterableIterator<string> {
    return this.#dues.keys();
  }

  /** Returns when the first name is due, or Infinity if there is none. */
  nextMs(): number {
    for (; this.#first < this.#line.length; this.#first++) {
      const due = this.#line[this.#first] as Due;
      if (this.#isLive(due)) return due.atMs;
    }
    return Infinity;
  }

  /** Removes and returns the first name if it is due. */
  take(nowMs: number): string | undefined {
    if (this.nextMs() > nowMs) return undefined;
    const { name } = this.#line[this.#first++] as Due;
    this.#dues.delete(name);
    return name;
  }

  /** An entry that was taken is dead, as its name is gone. */
  #isLive(due: Due): boolean {
    return this.#dues.get(due.name) === due;
  }
}
