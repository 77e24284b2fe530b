import { monotonicMs } from '../clock.js';
import type { BudgetBackend } from './budget.backend.js';

/** Roots that one process looks after; more are left to others, and to whoever uses them next. */
const MAX_ROOTS = 10_000;
const BATCH = 100;
/** After so many rounds without a sign of who looked after it, a root is anybody's. */
const ORPHANED_AFTER = 3;
/** How much of a round is left to chance, so that processes that start together do not go on together. */
const JITTER = 0.2;

interface Watched {
  /** When there is something to do again, by `monotonicMs()`. */
  dueMs: number;
  /** Taken over from somebody else then, by the clock of the registry. */
  readonly adoptedAtMs?: number;
}

/**
 * Frees the memory of what has ended, in the roots that this process uses and in those that dead ones have left, and
 * tells of holds that expired. No budget waits for it: an expired hold is out of the sums without it.
 */
export class BudgetReaper {
  readonly #watched = new Map<string, Watched>();
  /** Adopted roots in which nothing was left, and when they were adopted. */
  readonly #done = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #round: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(
    private readonly backend: Pick<BudgetBackend, 'reap' | 'roots'>,
    private readonly everyMs: number,
    private readonly onExpired: (root: string, ids: readonly string[]) => void,
  ) {
    this.#arm();
  }

  /** This root is in use. */
  touch(root: string): void {
    if (this.#stopped || this.#watched.has(root)) return;
    if (this.#watched.size < MAX_ROOTS) this.#watched.set(root, { dueMs: monotonicMs() + this.everyMs });
    // Should the process die before its next round, others know of it.
    void this.backend.roots?.share({ kept: [root] }).catch(() => {});
  }

  /** Resolves when the step that is on its way has told what it reaped. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#round;
  }

  #arm(): void {
    const inMs = this.everyMs * (1 - JITTER * Math.random());
    this.#timer = setTimeout(() => {
      this.#round = this.#reapDue().then(() => {
        if (!this.#stopped) this.#arm();
      });
    }, inMs).unref();
  }

  async #reapDue(): Promise<void> {
    await this.#share().catch(() => {}); // Whoever cannot be told now is told in the next round.
    const nowMs = monotonicMs();
    for (const [root, { dueMs }] of this.#watched)
      if (dueMs <= nowMs && !this.#stopped) await this.#reap(root).catch(() => this.#later(root, 0));
  }

  /** Says what is looked after here, and takes over what nobody looks after. */
  async #share(): Promise<void> {
    if (!this.backend.roots) return;
    const { atMs, adopted } = await this.backend.roots.share({
      kept: [...this.#watched.keys()],
      done: this.#done,
      adopt: { max: Math.min(BATCH, MAX_ROOTS - this.#watched.size), afterMs: ORPHANED_AFTER * this.everyMs },
    });
    this.#done.clear();
    for (const root of adopted)
      if (!this.#watched.has(root)) this.#watched.set(root, { dueMs: 0, adoptedAtMs: atMs });
  }

  async #reap(root: string): Promise<void> {
    let nextInMs: number | null;
    do {
      const step = await this.backend.reap({ root, max: BATCH, onLate: this.#tell(root) });
      this.#tell(root)(step);
      nextInMs = step.nextInMs;
    } while (nextInMs === 0 && !this.#stopped);
    if (nextInMs === null) this.#forget(root);
    else this.#later(root, nextInMs);
  }

  #tell(root: string): (step: { readonly expired: readonly string[] }) => void {
    return ({ expired }) => {
      if (expired.length > 0) this.onExpired(root, expired);
    };
  }

  #forget(root: string): void {
    const adoptedAtMs = this.#watched.get(root)?.adoptedAtMs;
    this.#watched.delete(root);
    // One of our own stays known: another process may use it. Whoever adopts it finds out.
    if (adoptedAtMs !== undefined) this.#done.set(root, adoptedAtMs);
  }

  /** An operation may end sooner than the one that is first now: not later than the next round. */
  #later(root: string, inMs: number): void {
    const watched = this.#watched.get(root);
    if (watched) watched.dueMs = monotonicMs() + Math.max(this.everyMs, inMs);
  }
}
