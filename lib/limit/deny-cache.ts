import type { BackendDecision, BackendDenied } from './limit.backend.js';

const MAX_ENTRIES = 10_000;

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
  readonly #entries = new Map<string, Entry>();
  /** When an entry was last deleted. A decision that was asked for before that may be about a block that has ended. */
  #deletedAtMs = -Infinity;

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
    if (this.longestMs === 0 || askedAtMs <= this.#deletedAtMs) return;
    if (this.#entries.size >= MAX_ENTRIES) this.#entries.delete(this.#entries.keys().next().value as string);
    this.#entries.set(identity, {
      decision,
      // The backend measured the wait before now. Counted from now it is never too short for the client.
      blockEndsAtMs: this.now() + decision.retryAfterMs,
      endsAtMs: askedAtMs + Math.min(decision.retryAfterMs, this.longestMs),
    });
  }

  /** Forgets the blocks of all identities that are meant. */
  forget(isMeant: (identity: string) => boolean): void {
    this.#deletedAtMs = this.now();
    for (const identity of this.#entries.keys()) if (isMeant(identity)) this.#entries.delete(identity);
  }

  delete(identity: string): void {
    this.#deletedAtMs = this.now();
    this.#entries.delete(identity);
  }
}
