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
  #timesPassed = 0;
  #listener: (() => void) | undefined;
  #isWoken = false;

  constructor(
    readonly pollMs: number,
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

  /** Called when an attempt begins. Returns whether the turn was woken since the last attempt, and forgets it. */
  begin(): boolean {
    const wasWoken = this.#isWoken;
    this.#isWoken = false;
    return wasWoken;
  }

  leave(): void {
    if (this.hasLeft) return;
    this.hasLeft = true;
    this.onLeave();
  }
}
