/** One counted attempt. A call of cost n has n attempts, next to each other. */
export interface Attempt {
  readonly callId: string;
  readonly atMs: number;
}

/** From so many attempts on, the ids are also kept in a set. Most logs are short, and a set takes more memory than they do. */
const INDEX_AT = 16;

/**
 * The attempts of one identity, sorted by time. Attempts come at the end and go at the beginning, in constant time on
 * average. Counting takes a logarithmic time.
 */
export class AttemptLog {
  #attempts: Attempt[] = [];
  /** The attempts before this place are gone. They are removed together, so that the others need not move each time. */
  #start = 0;
  #callIds: Set<string> | undefined;

  get length(): number {
    return this.#attempts.length - this.#start;
  }

  get newest(): Attempt | undefined {
    return this.at(this.length - 1);
  }

  /** Returns the attempt at a place, counted from the oldest. */
  at(place: number): Attempt | undefined {
    return place < 0 ? undefined : this.#attempts[this.#start + place];
  }

  has(callId: string): boolean {
    if (this.#callIds) return this.#callIds.has(callId);
    for (let i = this.#attempts.length - 1; i >= this.#start; i--)
      if ((this.#attempts[i] as Attempt).callId === callId) return true;
    return false;
  }

  countAfter(fromMs: number): number {
    return this.#attempts.length - this.#firstAfter(fromMs);
  }

  dropUpTo(fromMs: number): void {
    const end = this.#firstAfter(fromMs);
    if (this.#callIds)
      for (let i = this.#start; i < end; i++) this.#callIds.delete((this.#attempts[i] as Attempt).callId);
    this.#start = end;
    if (2 * end <= this.#attempts.length) return;
    this.#attempts.splice(0, end);
    this.#start = 0;
  }

  /** Adds the attempts of a call, unless they are there already. */
  add(callId: string, atMs: number, cost: number): void {
    if (this.has(callId)) return;
    const attempt = { callId, atMs };
    const newest = this.newest;
    if (!newest || newest.atMs <= atMs) for (let i = 0; i < cost; i++) this.#attempts.push(attempt);
    else this.#attempts.splice(this.#firstAfter(atMs), 0, ...new Array<Attempt>(cost).fill(attempt));
    if (this.#callIds) this.#callIds.add(callId);
    else if (this.length >= INDEX_AT) this.#index();
  }

  /** Removes the newest `count` attempts, which may be a part of a call. */
  dropNewest(count: number): void {
    this.#attempts.length = Math.max(this.#start, this.#attempts.length - count);
    if (this.#callIds) this.#index();
  }

  withdraw(callId: string): void {
    if (this.has(callId)) this.dropCalls((each) => each === callId);
  }

  /** Moves the attempts after an instant. `to` keeps their order. */
  move(fromMs: number, to: (atMs: number) => number): void {
    for (let i = this.#firstAfter(fromMs); i < this.#attempts.length; i++) {
      const { callId, atMs } = this.#attempts[i] as Attempt;
      this.#attempts[i] = { callId, atMs: to(atMs) };
    }
  }

  dropCalls(isDropped: (callId: string) => boolean): void {
    this.#attempts = this.#attempts.slice(this.#start).filter(({ callId }) => !isDropped(callId));
    this.#start = 0;
    if (this.#callIds) this.#index();
  }

  clear(): void {
    this.#attempts = [];
    this.#start = 0;
    this.#callIds = undefined;
  }

  #index(): void {
    this.#callIds = new Set();
    for (let i = this.#start; i < this.#attempts.length; i++)
      this.#callIds.add((this.#attempts[i] as Attempt).callId);
  }

  #firstAfter(fromMs: number): number {
    let low = this.#start;
    let high = this.#attempts.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#attempts[middle] as Attempt).atMs <= fromMs) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
