import { monotonicMs } from '../clock.js';
import type { BudgetBackend } from './budget.backend.js';

/** Roots that one process looks after where others take over: beyond, the one that was seen to first is left to them. */
const MAX_ROOTS = 10_000;
/** How many it takes over in a round: that many may be new, or left over, all the time. */
const ADOPTED_AT_ONCE = 1_000;
const BATCH = 100;
/** After so many rounds without a sign of who looked after it, a root is anybody's. */
const ORPHANED_AFTER = 3;
/** How much of a round is left to chance, so that processes that start together do not go on together. */
const JITTER = 0.2;

interface Watched {
  /** When there is something to do again, as far as is known here, by `monotonicMs()`. */
  dueMs: number;
  /** Taken over from somebody else then, by the clock of the registry. */
  readonly adoptedAtMs?: number;
}

/**
 * Frees the memory of what has ended, in the roots that this process uses and in those that dead ones have left, and
 * tells of holds that expired. No budget waits for it: an expired hold is out of the sums without it.
 */
export class BudgetReaper {
  /** The one that was seen to first comes first. */
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
    /** A round could not do all that there is to do: the next one tries again. */
    private readonly onFault: (error: unknown) => void,
  ) {
    this.#arm();
  }

  /** This root is in use. */
  touch(root: string): void {
    if (this.#stopped) return;
    const dueMs = monotonicMs() + this.everyMs;
    const watched = this.#watched.get(root);
    // What is first now may be the end of the month.
    if (watched) return void (watched.dueMs = Math.min(watched.dueMs, dueMs));
    this.#done.delete(root);
    this.#watch(root, { dueMs });
    // Should the process die before its next round, others know of it.
    this.backend.roots?.share({ kept: [root] }).catch(this.onFault);
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
    await this.#share().catch(this.onFault);
    const nowMs = monotonicMs();
    for (const [root, { dueMs, adoptedAtMs }] of this.#watched) {
      if (this.#stopped) return;
      if (dueMs > nowMs) continue;
      // Who uses it meanwhile puts it back: the answer may not know of that.
      this.#watched.delete(root);
      const nextInMs = await this.#reap(root).catch((error: unknown) => {
        this.onFault(error);
        return 0;
      });
      if (nextInMs !== null) this.#watch(root, { dueMs: monotonicMs() + Math.max(this.everyMs, nextInMs) });
      // One of our own stays known: another process may use it. Whoever adopts it finds out.
      else if (adoptedAtMs !== undefined && !this.#watched.has(root)) this.#done.set(root, adoptedAtMs);
    }
  }

  /** Says what is looked after here, and takes over what nobody looks after. */
  async #share(): Promise<void> {
    if (!this.backend.roots) return;
    const { atMs, adopted } = await this.backend.roots.share({
      kept: [...this.#watched.keys()],
      done: this.#done,
      adopt: { max: ADOPTED_AT_ONCE, afterMs: ORPHANED_AFTER * this.everyMs },
    });
    this.#done.clear();
    for (const root of adopted) this.#watch(root, { dueMs: 0, adoptedAtMs: atMs });
  }

  #watch(root: string, watched: Watched): void {
    if (this.#watched.has(root)) return;
    const first = this.#watched.keys().next();
    if (this.backend.roots && this.#watched.size >= MAX_ROOTS) this.#watched.delete(first.value as string);
    this.#watched.set(root, watched);
  }

  /** Gives in how many ms there is something to do again; null: never, as things stand. */
  async #reap(root: string): Promise<number | null> {
    let nextInMs: number | null;
    do {
      const step = await this.backend.reap({ root, max: BATCH, onLate: this.#tell(root) });
      this.#tell(root)(step);
      nextInMs = step.nextInMs;
    } while (nextInMs === 0 && !this.#stopped);
    return nextInMs;
  }

  #tell(root: string): (step: { readonly expired: readonly string[] }) => void {
    return ({ expired }) => {
      if (expired.length > 0) this.onExpired(root, expired);
    };
  }
}
