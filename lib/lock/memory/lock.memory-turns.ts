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

interface MemoryQueue {
  /** Calls that hold a lock. They go before the others, which may wait for that lock. */
  readonly nested: WaitingLine;
  readonly plain: WaitingLine;
  /** After a call that holds a lock, one that holds none gets its turn. */
  isPlainNext: boolean;
}

/** The calls that wait for each key, in the order in which they came. A call stands in one queue at most. */
export class MemoryQueues {
  readonly #queues = new Map<string, MemoryQueue>();
  #lastTicket = 0;

  /** The call whose turn is next. */
  head(key: string): MemoryTurn | undefined {
    const queue = this.#queues.get(key);
    if (!queue) return undefined;
    const { nested, plain, isPlainNext } = queue;
    return (isPlainNext ? (plain.first ?? nested.first) : (nested.first ?? plain.first)) as MemoryTurn;
  }

  /** The calls that wait for a key, those that hold a lock first. */
  waiting(key: string): WaitingTurn[] {
    const { nested, plain } = this.#queues.get(key) ?? {};
    return [...(nested?.turns() ?? []), ...(plain?.turns() ?? [])];
  }

  /** Removes the call that gets the key, and remembers whose turn comes after it. */
  handOver(key: string, turn: MemoryTurn): void {
    const queue = this.#queues.get(key);
    if (queue) queue.isPlainNext = turn.isNested;
    this.leave(key, turn);
  }

  /** Another call that holds a lock waits for the key. */
  isWantedByHolder(key: string, turn: MemoryTurn): boolean {
    const holders = this.#queues.get(key)?.nested.length ?? 0;
    return holders > (turn.isNested && turn.queuedFor === key ? 1 : 0);
  }

  enter(key: string, turn: MemoryTurn): void {
    if (turn.queuedFor === key) return;
    let queue = this.#queues.get(key);
    if (!queue) {
      queue = { nested: new WaitingLine(), plain: new WaitingLine(), isPlainNext: false };
      this.#queues.set(key, queue);
    }
    turn.ticket ||= ++this.#lastTicket;
    turn.queuedFor = key;
    const place = turn.isNested ? queue.nested.enter(turn) : queue.nested.length + queue.plain.enter(turn);
    turn.place ??= place;
  }

  /** Removes a call from the queue of a key. The one that is the first of it now looks for the others. */
  leave(key: string, turn: MemoryTurn): void {
    const queue = this.#queues.get(key);
    if (!queue || turn.queuedFor !== key) return;
    turn.queuedFor = undefined;
    turn.line?.leave(turn)?.lookIn(LOOK_AS_FIRST_MS);
    if (!queue.nested.first && !queue.plain.first) this.#queues.delete(key);
  }
}
