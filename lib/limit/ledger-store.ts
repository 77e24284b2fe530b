import type { Clock } from '../clock.js';
import { IdleSweep } from '../idle-sweep.js';

/** More identities than this are not kept. */
const MAX_IDENTITIES = 100_000;
const SWEEP_AT_LEAST = 1_024;

/** What the store has to know of what it keeps. */
export interface Kept {
  /** Drops what is over at this instant. */
  tidy(nowMs: number): this;
  isEmpty(): boolean;
  liveBlock(nowMs: number): { readonly scope: string } | undefined;
}

/**
 * Gives its oldest entries in constant time each, by an iterator that it keeps: a new one would pass by all that was
 * removed. It is let go as soon as entries are removed by the thousand, since it keeps the tables of the map alive.
 */
class Shelf<Value> extends Map<string, Value> {
  #entries: MapIterator<[string, Value]> | undefined;

  takeOldest(): [string, Value] | undefined {
    let step = (this.#entries ??= this.entries()).next();
    if (step.done) step = (this.#entries = this.entries()).next();
    if (step.done) return undefined;
    this.delete(step.value[0]);
    return step.value;
  }

  /** Removes all that this says. */
  sweep(isOver: (value: Value) => boolean): void {
    this.#entries = undefined;
    for (const [key, value] of this) if (isOver(value)) this.delete(key);
  }
}

/**
 * What is known of each identity, the most recently used last. At the bound the least recently used goes: first of those
 * without a live block, then of those that are blocked, and last of those that were blocked by hand. Whoever makes up
 * identities by the thousand must not free anybody who is blocked, least of all himself.
 */
export class LedgerStore<Ledger extends Kept> {
  readonly #open = new Shelf<Ledger>();
  readonly #blocked = new Shelf<Ledger>();
  readonly #byHand = new Shelf<Ledger>();
  /** In the order in which they give room. */
  readonly #shelves = [this.#open, this.#blocked, this.#byHand];
  readonly #idle: IdleSweep;
  #sweepAt = SWEEP_AT_LEAST;

  constructor(
    private readonly clock: Clock,
    private readonly create: () => Ledger,
  ) {
    this.#idle = new IdleSweep(() => this.#sweep(this.clock.now()));
  }

  get size(): number {
    return this.#open.size + this.#blocked.size + this.#byHand.size;
  }

  /** Without making it the most recently used one. */
  peek(identity: string, nowMs: number): Ledger | undefined {
    for (const shelf of this.#shelves) {
      const ledger = shelf.get(identity);
      if (ledger) return ledger.tidy(nowMs);
    }
    return undefined;
  }

  /** The identity's ledger, which now is the most recently used one. */
  take(identity: string, nowMs: number): Ledger {
    const known = this.peek(identity, nowMs);
    if (known) this.delete(identity);
    else this.#makeRoom(nowMs);
    const ledger = known ?? this.create();
    // Whether it is blocked is looked at when there is no more room: a block may be set or lifted until then.
    this.#open.set(identity, ledger);
    this.#idle.start();
    return ledger;
  }

  delete(identity: string): void {
    for (const shelf of this.#shelves) if (shelf.delete(identity)) return;
  }

  /** What is over goes when the store has doubled, and now and then while nobody calls: O(1) a call. */
  #makeRoom(nowMs: number): void {
    if (this.size >= this.#sweepAt) this.#sweep(nowMs);
    if (this.size < MAX_IDENTITIES) return;
    for (const shelf of this.#shelves)
      for (let oldest = shelf.takeOldest(); oldest; oldest = shelf.takeOldest()) {
        const [identity, ledger] = oldest;
        const fitting = this.#shelfOf(ledger, nowMs);
        // Each blocked one is put aside once until it is used again.
        if (this.#shelves.indexOf(fitting) <= this.#shelves.indexOf(shelf)) return;
        fitting.set(identity, ledger);
      }
  }

  #shelfOf(ledger: Ledger, nowMs: number): Shelf<Ledger> {
    const block = ledger.liveBlock(nowMs);
    if (!block) return this.#open;
    return block.scope === 'manual' ? this.#byHand : this.#blocked;
  }

  #sweep(nowMs: number): number {
    for (const shelf of this.#shelves) shelf.sweep((ledger) => ledger.tidy(nowMs).isEmpty());
    this.#sweepAt = Math.max(SWEEP_AT_LEAST, 2 * this.size);
    return this.size;
  }
}
