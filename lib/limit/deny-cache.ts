import type { BackendDecision, BackendDenied } from './limit.backend.js';
import { type Meant, Remembered } from './remembered.js';

interface Entry {
  readonly decision: BackendDenied;
  readonly blockEndsAtMs: number;
  readonly endsAtMs: number;
}

/**
 * Remembers blocks in this process for a short while, so that the calls of a blocked client cost no round trip. It does not
 * remember the counts of a key. When another process ends a block, this process may still deny calls until its entry ends.
 */
export class DenyCache {
  readonly #entries = new Remembered<Entry>();
  /** When entries were last forgotten. A decision that was asked for before that may be about a block that has ended. */
  #forgottenAtMs = -Infinity;

  /** @param longestMs - how long a block is remembered at most; 0 turns the cache off */
  constructor(
    private readonly longestMs: number,
    private readonly now: () => number = () => performance.now(),
  ) {}

  get size(): number {
    return this.#entries.size;
  }

  /** Returns the remembered decision, with the rest of its wait. */
  find(identity: string): BackendDenied | undefined {
    const entry = this.#entries.get(identity);
    if (!entry) return undefined;
    const nowMs = this.now();
    // Not a spread, which is much slower with fields behind it.
    if (nowMs < entry.endsAtMs)
      return Object.assign({}, entry.decision, { retryAfterMs: entry.blockEndsAtMs - nowMs });
    this.#entries.delete(identity);
    return undefined;
  }

  /**
   * Remembers the decision if it is about a block.
   *
   * @param askedAtMs - when the backend was asked. The entry's time starts there, so that it never outlives the block.
   */
  add(identity: string, decision: BackendDecision | undefined, askedAtMs: number): void {
    if (decision?.status !== 'denied' || !decision.blocked) return;
    if (this.longestMs === 0 || askedAtMs <= this.#forgottenAtMs) return;
    this.#entries.set(identity, {
      decision,
      // The backend measured the wait before now. Counted from now it is never too short for the client.
      blockEndsAtMs: this.now() + decision.retryAfterMs,
      endsAtMs: askedAtMs + Math.min(decision.retryAfterMs, this.longestMs),
    });
  }

  forget(meant: Meant): void {
    this.#forgottenAtMs = this.now();
    this.#entries.forget(meant);
  }
}
