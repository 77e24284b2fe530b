import type { LockTurn } from './lock.types.js';

/**
 * How often a call for several keys passes on a key that it was handed. After that it keeps such keys until it has all
 * of them.
 */
const PASSES = 4;

/** The part of a waiting call that is the same in every backend: when it began, its place, and how it is woken. */
export class WaitingTurn implements LockTurn {
  readonly sinceMs = performance.now();
  place: number | undefined;
  hasLeft = false;
  /** Orders the queues: a call that came earlier has a lower number. 0 until the call waits. */
  ticket = 0;
  line: WaitingLine | undefined;
  /** Its neighbours in the line. */
  before: WaitingTurn | undefined;
  after: WaitingTurn | undefined;
  #timesPassed = 0;
  #listener: (() => void) | undefined;
  #isWoken = false;
  #look: NodeJS.Timeout | undefined;

  constructor(
    readonly pollMs: number,
    /** The call holds a lock. */
    readonly isNested: boolean,
    private readonly onLeave: () => void,
  ) {}

  get keeps(): boolean {
    return this.#timesPassed >= PASSES;
  }

  /** Called when the turn has passed on a key that it was handed and could not use yet. */
  passed(): void {
    this.#timesPassed++;
  }

  onWake(listener: (() => void) | undefined): void {
    this.#listener = listener;
    if (this.#isWoken) listener?.();
  }

  wake(): void {
    this.#isWoken = true;
    this.#listener?.();
  }

  /** Makes the next attempt come in `ms`, if it would come later. */
  lookIn(ms: number): void {
    clearTimeout(this.#look);
    this.#look = setTimeout(() => this.#listener?.(), ms).unref();
  }

  /** Called when an attempt begins. Returns whether the turn was woken since the last attempt, and forgets it. */
  begin(): boolean {
    const wasWoken = this.#isWoken;
    this.#isWoken = false;
    clearTimeout(this.#look);
    return wasWoken;
  }

  leave(): void {
    if (this.hasLeft) return;
    this.hasLeft = true;
    clearTimeout(this.#look);
    this.onLeave();
  }
}

/**
 * The turns of this process that wait for the same key, all of them holding a lock or none, by their tickets. Thousands may
 * wait, so they are linked with each other: entering at the end and leaving take constant time.
 */
export class WaitingLine {
  first: WaitingTurn | undefined;
  length = 0;
  #last: WaitingTurn | undefined;

  turns(): WaitingTurn[] {
    const turns: WaitingTurn[] = [];
    for (let turn = this.first; turn; turn = turn.after) turns.push(turn);
    return turns;
  }

  /** Returns the place, counted from 1. A turn with an older ticket than others goes before them. */
  enter(turn: WaitingTurn): number {
    let before = this.#last;
    let place = ++this.length;
    for (; before && before.ticket > turn.ticket; place--) before = before.before;
    const after = before ? before.after : this.first;
    turn.line = this;
    turn.before = before;
    turn.after = after;
    if (before) before.after = turn;
    else this.first = turn;
    if (after) after.before = turn;
    else this.#last = turn;
    return place;
  }

  /** Returns the turn that is the first now, if the one that left was it before. */
  leave(turn: WaitingTurn): WaitingTurn | undefined {
    const { before, after } = turn;
    if (before) before.after = after;
    else this.first = after;
    if (after) after.before = before;
    else this.#last = before;
    turn.line = turn.before = turn.after = undefined;
    this.length--;
    return before ? undefined : after;
  }
}
