import { monotonicMs } from '../../core/clock.js';
import type { LockTurn } from '../lock.types.js';

/** A call that waits for locks in this process. */
export class MemoryTurn implements LockTurn {
  readonly sinceMs = monotonicMs();
  place: number | undefined;
  keys: readonly string[] = [];
  lockId: string | undefined;
  /** Orders the queues: a call that came earlier has a lower number. 0 until the call waits. */
  ticket = 0;
  timesPassed = 0;
  #listener: (() => void) | undefined;
  #isWoken = false;

  constructor(
    readonly pollMs: number,
    private readonly onLeave: (turn: MemoryTurn) => void,
  ) {}

  onWake(listener: (() => void) | undefined): void {
    this.#listener = listener;
    if (this.#isWoken) listener?.();
  }

  wake(): void {
    this.#isWoken = true;
    this.#listener?.();
  }

  begin(): void {
    this.#isWoken = false;
  }

  leave(): void {
    this.onLeave(this);
  }
}

/** The calls that wait for each key, in the order in which they came. */
export class MemoryQueues {
  readonly #queues = new Map<string, MemoryTurn[]>();
  #lastTicket = 0;

  head(key: string): MemoryTurn | undefined {
    return this.#queues.get(key)?.[0];
  }

  has(key: string): boolean {
    return this.#queues.has(key);
  }

  enter(key: string, turn: MemoryTurn): void {
    const queue = this.#queues.get(key) ?? [];
    if (queue.includes(turn)) return;
    turn.ticket ||= ++this.#lastTicket;
    const at = queue.findIndex(({ ticket }) => ticket > turn.ticket);
    queue.splice(at < 0 ? queue.length : at, 0, turn);
    this.#queues.set(key, queue);
    turn.place ??= queue.indexOf(turn) + 1;
  }

  leave(key: string, turn: MemoryTurn): void {
    const queue = this.#queues.get(key);
    const at = queue?.indexOf(turn) ?? -1;
    if (!queue || at < 0) return;
    queue.splice(at, 1);
    if (queue.length === 0) this.#queues.delete(key);
  }
}
