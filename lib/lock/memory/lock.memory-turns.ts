import { WaitingLine, WaitingTurn } from '../waiting-turn.js';

/** When a turn that has become the first of its queue looks at the latest, in ms. */
const LOOK_AS_FIRST_MS = 50;

/** A call that waits for locks in this process. */
export class MemoryTurn extends WaitingTurn {
  keys: readonly string[] = [];
  lockId: string | undefined;
  /** The key in whose queue the call stands. */
  queuedFor: string | undefined;
}

/** The calls that wait for each key, in the order in which they came. A call stands in one queue at most. */
export class MemoryQueues {
  readonly #queues = new Map<string, WaitingLine>();
  #lastTicket = 0;

  head(key: string): MemoryTurn | undefined {
    return this.#queues.get(key)?.first as MemoryTurn | undefined;
  }

  enter(key: string, turn: MemoryTurn): void {
    if (turn.queuedFor === key) return;
    let queue = this.#queues.get(key);
    if (!queue) this.#queues.set(key, (queue = new WaitingLine()));
    turn.ticket ||= ++this.#lastTicket;
    turn.queuedFor = key;
    const place = queue.enter(turn);
    turn.place ??= place;
  }

  /** Removes a call from the queue of a key. The one that is the first of it now looks for the others. */
  leave(key: string, turn: MemoryTurn): void {
    const queue = this.#queues.get(key);
    if (!queue || turn.queuedFor !== key) return;
    turn.queuedFor = undefined;
    queue.leave(turn)?.lookIn(LOOK_AS_FIRST_MS);
    if (!queue.first) this.#queues.delete(key);
  }
}
