import type { BudgetBackend, ReapRequest, ReapStep, RootsRequest } from './budget.backend.js';
import type { ReapResult } from './budget.types.js';

/** Is told what a step has found, if it has found anything. */
type OnFound = (root: string, step: ReapStep) => void;

/** How many roots are taken at once. */
const ROOTS_AT_ONCE = 1_000;
/** How many holds and records one step processes. */
const REAP_BATCH = 100;
/** Each round is shortened at random by up to this fraction, so that processes that start together drift apart. */
const JITTER = 0.2;

/**
 * Purges old records and reports expired holds, in the roots that are due, whichever process has used them. Budgets are
 * correct without the reaper, because every operation leaves expired holds out of its sums.
 */
export class BudgetReaper {
  /** The roots that were used since the last round began, and those of the round before. */
  readonly #used = new Set<string>();
  #usedBefore: ReadonlySet<string> = new Set();
  /** What became of the roots that were taken last. The registry is told with the next ones. */
  #reaped: { root: string; untilMs: number; nextInMs: number | null }[] = [];
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
    if (this.#stopped || this.#used.has(root)) return;
    this.#used.add(root);
    // The registry learns of a new root at once, in case this process dies before its next round.
    if (!this.#usedBefore.has(root)) this.#take([root], [], 0).catch(this.onFault);
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
      this.#round = this.#reapDue()
        .catch(this.onFault)
        .then(() => {
          if (!this.#stopped) this.#arm();
        });
    }, inMs).unref();
  }

  /** After a fault the next round tries again. */
  async #reapDue(): Promise<void> {
    const endMs = performance.now() + this.everyMs;
    const used = [...this.#used];
    this.#usedBefore = new Set(used);
    for (let mayBeMore = true; mayBeMore && !this.#stopped;) {
      const told = used.splice(0, ROOTS_AT_ONCE);
      const { roots, untilMs } = await this.#take(told, this.#reaped, ROOTS_AT_ONCE);
      for (const root of told) this.#used.delete(root);
      this.#reaped = [];
      for (const root of roots) {
        if (this.#stopped) return;
        const nextInMs = await this.#reap(root).catch(this.onFault);
        if (nextInMs !== undefined) this.#reaped.push({ root, untilMs, nextInMs });
      }
      mayBeMore = used.length > 0 || (roots.length === ROOTS_AT_ONCE && performance.now() < endMs);
    }
  }

  #take(used: readonly string[], reaped: RootsRequest['reaped'], max: number) {
    return this.backend.roots({ used, reaped, max, everyMs: this.everyMs });
  }

  /**
   * Returns in how many ms the root must be reaped again, or null if it is empty. What takes longer than a round goes on in
   * a later one, so a server that always answers that there is more holds up no other root.
   */
  async #reap(root: string): Promise<number | null> {
    const endMs = performance.now() + this.everyMs;
    const mayGoOn = (): boolean => !this.#stopped && performance.now() <= endMs;
    return (await reapUpTo({ root, max: Infinity }, this.backend, this.onFound, mayGoOn)).nextInMs;
  }
}

/**
 * Reaps a root in steps, until at most `max` holds and records are processed. It reports at once what a step has found: no
 * other call would report it again. An answer that comes too late for the call is reported too.
 */
export async function reapUpTo(
  { max, ...request }: Omit<ReapRequest, 'onLate'>,
  backend: Pick<BudgetBackend, 'reap'>,
  onFound: OnFound,
  mayGoOn = (): boolean => true,
): Promise<ReapResult & Pick<ReapStep, 'nextInMs'>> {
  const onLate = (step: ReapStep): void => {
    if (step.expired.length + step.quarantined.length > 0) onFound(request.root, step);
  };
  const expired: string[] = [];
  for (let purged = 0, left = max; ; left -= REAP_BATCH) {
    const step = await backend.reap({ ...request, max: Math.min(left, REAP_BATCH), onLate });
    onLate(step);
    expired.push(...step.expired);
    purged += step.purged;
    const { nextInMs } = step;
    if (nextInMs !== 0 || left <= REAP_BATCH || !mayGoOn()) return { expired, purged, nextInMs };
  }
}
