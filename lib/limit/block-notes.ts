import { monotonicMs } from '../clock.js';
import type { LimitOutcome } from './limit.backend.js';

const MAX_NOTES = 10_000;

type Denial = Extract<LimitOutcome, { status: 'denied' }>;

interface Note {
  readonly denial: Denial;
  readonly blockEndsAtMs: number;
  readonly noteEndsAtMs: number;
}

/**
 * Remembers blocks in this process for a short while: who hammers while blocked costs no round trip. Blocks
 * only, never counts; what another process lifts may be denied here until the note ends.
 */
export class BlockNotes {
  readonly #notes = new Map<string, Note>();
  /** What was asked before a block was lifted must not bring its note back. */
  #liftedAtMs = -Infinity;

  constructor(
    private readonly longestMs: number,
    private readonly now: () => number = monotonicMs,
  ) {}

  get size(): number {
    return this.#notes.size;
  }

  find(identity: string): Denial | undefined {
    const note = this.#notes.get(identity);
    if (!note) return undefined;
    const nowMs = this.now();
    if (nowMs < note.noteEndsAtMs) return { ...note.denial, retryAfterMs: note.blockEndsAtMs - nowMs };
    this.#notes.delete(identity);
    return undefined;
  }

  /** @param askedAtMs - before the question was sent, by the same clock: the note never outlives the block */
  add(identity: string, denial: Denial, askedAtMs: number): void {
    if (!denial.blocked || this.longestMs === 0 || askedAtMs <= this.#liftedAtMs) return;
    if (this.#notes.size >= MAX_NOTES) this.#dropOldest();
    this.#notes.set(identity, {
      denial,
      // Counted from the answer: who waits for it must not come a round trip too early.
      blockEndsAtMs: this.now() + denial.retryAfterMs,
      noteEndsAtMs: askedAtMs + Math.min(denial.retryAfterMs, this.longestMs),
    });
  }

  delete(identity: string): void {
    this.#liftedAtMs = this.now();
    this.#notes.delete(identity);
  }

  #dropOldest(): void {
    for (const identity of this.#notes.keys()) return void this.#notes.delete(identity);
  }
}
