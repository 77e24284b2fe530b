import { WaitingTurn } from '../waiting-turn.js';

/** A call that waits for locks in this process. */
export class MemoryTurn extends WaitingTurn {
  keys: readonly string[] = [];
  lockId: string | undefined;
  /** Orders the queues: a call that came earlier has a lower number. 0 until the call waits. */
  ticket = 0;
}

/** The calls that wait for each key, in the order in which they came. */
export class MemoryQueues {
  readonly #queues = new Map<string, MemoryTurn[]>();
  #lastTicket = 0;

  head(key: string): MemoryTurn | undefined {
    return this.#queues.get(key)?.[0];
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
