interface Due<Value> {
  readonly name: string;
  readonly atMs: number;
  readonly value: Value;
}

const COMPACT_ABOVE = 64;

/**
 * Values by their names, and a queue of them by their due time. Those that are due at the same time keep the order in which
 * they were set.
 */
export class DueQueue<Value = void> {
  readonly #dues = new Map<string, Due<Value>>();
  /** By time, from `#first` on. An entry that was replaced or removed stays in it until it comes up. */
  #line: Due<Value>[] = [];
  #first = 0;

  get size(): number {
    return this.#dues.size;
  }

  at(name: string): number | undefined {
    return this.#dues.get(name)?.atMs;
  }

  get(name: string): Value | undefined {
    return this.#dues.get(name)?.value;
  }

  set(name: string, atMs: number, value: Value): void {
    const due = { name, atMs, value };
    this.#dues.set(name, due);
    let [from, to] = [this.#first, this.#line.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if ((this.#line[middle] as Due<Value>).atMs <= atMs) from = middle + 1;
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

  /** Returns when the first name is due, or Infinity if there is none. */
  nextMs(): number {
    for (; this.#first < this.#line.length; this.#first++) {
      const due = this.#line[this.#first] as Due<Value>;
      if (this.#isLive(due)) return due.atMs;
    }
    return Infinity;
  }

  /** Removes and returns the first name if it is due. */
  take(nowMs: number): string | undefined {
    if (this.nextMs() > nowMs) return undefined;
    const { name } = this.#line[this.#first++] as Due<Value>;
    this.#dues.delete(name);
    return name;
  }

  /** An entry that was taken is dead, as its name is gone. */
  #isLive(due: Due<Value>): boolean {
    return this.#dues.get(due.name) === due;
  }
}
