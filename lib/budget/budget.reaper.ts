import type { BudgetBackend, ReapRequest, ReapStep } from './budget.backend.js';
import type { ReapResult } from './budget.types.js';

/** Is told what a step has found, if it has found anything. */
type OnFound = (root: string, step: ReapStep) => void;

/**
 * How many roots one process watches at most, if others can adopt them. Beyond that it stops watching the root that it
 * reaped longest ago, and another process adopts it.
 */
const MAX_ROOTS = 10_000;
/** How many roots are adopted at once. */
const ADOPTED_AT_ONCE = 1_000;
/** How many holds and records one step processes. */
const REAP_BATCH = 100;
/** A root that no process has watched for so many rounds can be adopted. */
const ORPHANED_AFTER = 3;
/** Each round is shortened at random by up to this fraction, so that processes that start together drift apart. */
const JITTER = 0.2;

interface Watched {
  /** When the root must be reaped next, as far as this process knows, in ms of `performance.now()`. */
  dueMs: number;
  /** When the root was adopted, by the clock of the registry. Undefined for a root that this process uses itself. */
  readonly adoptedAtMs?: number;
}

/**
 * Purges old records in the roots that this process uses, and in roots that dead processes have left. Reports expired
 * holds. Budgets are correct without the reaper, because every operation leaves expired holds out of its sums.
 */
export class BudgetReaper {
  /** The watched roots. The root that was reaped longest ago comes first. */
  readonly #watched = new Map<string, Watched>();
  /** Adopted roots that were found empty, and when they were adopted. */
  readonly #done = new Map<string, number>();
  /** When the last round began, in ms of `performance.now()`. */
  #roundAtMs = performance.now();
  #timer: NodeJS.Timeout | undefined;
  #round: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(
    private readonly backend: Pick<BudgetBackend, 'reap' | 'roots'>,
    private readonly everyMs: number,
    private readonly onFound: OnFound,
    private readonly onFault: (error: unknown) => void,
  ) {
    this.#arm();
  }

  touch(root: string): void {
    if (this.#stopped) return;
    // Every call passes here, so this reads no clock.
    const dueMs = this.#roundAtMs + this.everyMs;
    const watched = this.#watched.get(root);
    // The stored time may be far away, such as the end of a month. The operation that uses the root now needs the
    // reaper sooner.
    if (watched) return void (watched.dueMs = Math.min(watched.dueMs, dueMs));
    this.#done.delete(root);
    this.#watch(root, { dueMs });
    // Other processes learn of the root at once, in case this process dies before its next round.
    this.backend.roots?.share({ watched: [root] }).catch(this.onFault);
  }

  /** Stops the reaper. Resolves when the running step has reported what it reaped. */
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
    this.#roundAtMs = performance.now();
    let mayBeMore = await this.#shareAndReap([...this.#watched.keys()]);
    const endMs = this.#roundAtMs + this.everyMs;
    while (mayBeMore && !this.#stopped && performance.now() < endMs) mayBeMore = await this.#shareAndReap([]);
  }

  /**
   * Returns whether the round goes on. If most adopted roots were empty, the registry may hold many more of them, and roots
   * might be added faster than the rounds remove them. After a fault the next round tries again.
   */
  async #shareAndReap(watched: readonly string[]): Promise<boolean> {
    const shared = await this.#share(watched).catch((error: unknown) => (this.onFault(error), false));
    await this.#reapWatched();
    return shared && this.#done.size > ADOPTED_AT_ONCE / 2;
  }

  async #reapWatched(): Promise<void> {
    const nowMs = performance.now();
    for (const [root, { dueMs, adoptedAtMs }] of this.#watched) {
      if (this.#stopped) return;
      if (dueMs > nowMs) continue;
      // A call that uses the root meanwhile adds it again. The answer of this step may not know about that call.
      this.#watched.delete(root);
      const nextInMs = await this.#reap(root).catch((error: unknown) => (this.onFault(error), 0));
      if (nextInMs !== null)
        this.#watch(root, { dueMs: performance.now() + Math.max(this.everyMs, nextInMs) });
      // Only an adopted root that is empty leaves the registry. A root that this process has used stays there,
      // because another process may use it too.
      else if (adoptedAtMs !== undefined && !this.#watched.has(root)) this.#done.set(root, adoptedAtMs);
    }
  }

  /** Reports the watched roots to the registry, and adopts roots that nobody watches. */
  async #share(watched: readonly string[]): Promise<boolean> {
    if (!this.backend.roots) return false;
    const { atMs, adopted } = await this.backend.roots.share({
      watched,
      done: this.#done,
      adopt: { max: ADOPTED_AT_ONCE, afterMs: ORPHANED_AFTER * this.everyMs },
    });
    this.#done.clear();
    for (const root of adopted) this.#watch(root, { dueMs: 0, adoptedAtMs: atMs });
    return true;
  }

  #watch(root: string, watched: Watched): void {
    if (this.#watched.has(root)) return;
    const first = this.#watched.keys().next();
    if (this.backend.roots && this.#watched.size >= MAX_ROOTS) this.#watched.delete(first.value as string);
    this.#watched.set(root, watched);
  }

  /**
   * Returns in how many ms the root must be reaped again, or null if it is empty. What takes longer than a round goes on in
   * the next one, so a server that always answers that there is more holds up no other root.
   */
  async #reap(root: string): Promise<number | null> {
    const endMs = performance.now() + this.everyMs;
    for (;;) {
      const { nextInMs } = await reapBatch(this.backend, { root, max: REAP_BATCH }, this.onFound);
      if (nextInMs !== 0 || this.#stopped || performance.now() > endMs) return nextInMs;
    }
  }
}

/** Reaps a root until at most `max` holds and records are processed. */
export async function reapUpTo(
  max: number,
  backend: BudgetBackend,
  request: Omit<ReapRequest, 'max' | 'onLate'>,
  onFound: OnFound,
): Promise<ReapResult> {
  const expired: string[] = [];
  let purged = 0;
  for (let left = max; left > 0; left -= REAP_BATCH) {
    const step = await reapBatch(backend, { ...request, max: Math.min(left, REAP_BATCH) }, onFound);
    expired.push(...step.expired);
    purged += step.purged;
    if (step.nextInMs !== 0) break;
  }
  return { expired, purged };
}

/**
 * Reaps one batch of a root, and reports what it has found at once: no other call would report it again. An answer that
 * comes too late for the call is reported too.
 */
async function reapBatch(
  backend: Pick<BudgetBackend, 'reap'>,
  request: Omit<ReapRequest, 'onLate'>,
  onFound: OnFound,
): Promise<ReapStep> {
  const report = (step: ReapStep): void => {
    if (step.expired.length + step.quarantined.length > 0) onFound(request.root, step);
  };
  const step = await backend.reap({ ...request, onLate: report });
  report(step);
  return step;
}
