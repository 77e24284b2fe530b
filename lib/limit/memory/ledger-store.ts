import type { Clock } from '../../core/clock.js';
import { IdleSweep } from '../../core/idle-sweep.js';
import { Ledger } from './ledger.js';

/** The largest number of identities that are kept. */
const MAX_IDENTITIES = 100_000;

/**
 * A map that removes its oldest entry in constant time. For that it keeps an iterator, since a new one would have to step
 * over all entries that were removed. A sweep drops the iterator, because the iterator keeps the old tables of the map in
 * memory.
 */
class Shelf extends Map<string, Ledger> {
  #entries: MapIterator<[string, Ledger]> | undefined;

  takeOldest(): [string, Ledger] | undefined {
    let step = (this.#entries ??= this.entries()).next();
    if (step.done) step = (this.#entries = this.entries()).next();
    if (step.done) return undefined;
    this.delete(step.value[0]);
    return step.value;
  }

  /** Removes all entries that are over. */
  sweep(isOver: (ledger: Ledger) => boolean): void {
    this.#entries = undefined;
    for (const [key, value] of this) if (isOver(value)) this.delete(key);
  }
}

/**
 * Keeps a ledger for each identity, in the order of their last use. At the bound it drops the least recently used ledger:
 * first of those without a live block, then of those that are blocked, and last of those that were blocked by hand. So a
 * client that makes up identities by the thousand cannot end a block, not even its own.
 */
export class LedgerStore {
  readonly #open = new Shelf();
  readonly #blocked = new Shelf();
  readonly #byHand = new Shelf();
  /** The shelves, in the order in which ledgers are dropped. */
  readonly #shelves = [this.#open, this.#blocked, this.#byHand];
  readonly #idle: IdleSweep;

  constructor(private readonly clock: Clock) {
    this.#idle = new IdleSweep(() => this.#sweep());
  }

  get size(): number {
    return this.#open.size + this.#blocked.size + this.#byHand.size;
  }

  /** Returns the identity's ledger. This does not count as a use of it. */
  peek(identity: string, nowMs: number): Ledger | undefined {
    for (const shelf of this.#shelves) {
      const ledger = shelf.get(identity);
      if (ledger) return ledger.tidy(nowMs);
    }
    return undefined;
  }

  /** Returns the identity's ledger, or a new one. From then on it is the most recently used ledger. */
  take(identity: string, nowMs: number): Ledger {
    const known = this.peek(identity, nowMs);
    if (known) this.delete(identity);
    else this.#makeRoom(nowMs);
    const ledger = known ?? new Ledger();
    // Even a blocked ledger goes to the open ones. `#makeRoom` looks for a block later, which may be set or ended by then.
    this.#open.set(identity, ledger);
    return ledger;
  }

  *entries(): IterableIterator<[identity: string, ledger: Ledger]> {
    for (const shelf of this.#shelves) yield* shelf;
  }

  delete(identity: string): void {
    for (const shelf of this.#shelves) if (shelf.delete(identity)) return;
  }

  /** Drops one ledger if the store is full, also after a sweep. */
  #makeRoom(nowMs: number): void {
    this.#idle.grow(this.size);
    if (this.size < MAX_IDENTITIES) return;
    for (const shelf of this.#shelves)
      for (let oldest = shelf.takeOldest(); oldest; oldest = shelf.takeOldest()) {
        const [identity, ledger] = oldest;
        const fitting = this.#shelfOf(ledger, nowMs);
        // A ledger whose block keeps it goes to a shelf that is emptied later. Any other is dropped, and there is room.
        if (this.#shelves.indexOf(fitting) <= this.#shelves.indexOf(shelf)) return;
        fitting.set(identity, ledger);
      }
  }

  #shelfOf(ledger: Ledger, nowMs: number): Shelf {
    const block = ledger.liveBlock(nowMs);
    if (!block) return this.#open;
    return block.scope === 'manual' ? this.#byHand : this.#blocked;
  }

  #sweep(): number {
    const nowMs = this.clock.now();
    for (const shelf of this.#shelves) shelf.sweep((ledger) => ledger.tidy(nowMs).isEmpty());
    return this.size;
  }
}
