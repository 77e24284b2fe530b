import { monotonicMs } from '../clock.js';
import type { BudgetBackend } from './budget.backend.js';

/** Roots that this process remembers to reap; more are reaped by whoever uses them next. */
const MAX_ROOTS = 10_000;
const BATCH = 100;

/**
 * Frees the memory of what has ended, in the roots that this process uses, and tells of holds that expired. No
 * budget waits for it: an expired hold is out of the sums without it.
 */
export class BudgetReaper {
  /** When a root has something to do again, by `monotonicMs()`. */
  readonly #dueMs = new Map<string, number>();
  readonly #timer: NodeJS.Timeout;
  #reaping = false;

  constructor(
    private readonly backend: Pick<BudgetBackend, 'reap'>,
    private readonly everyMs: number,
    private readonly onExpired: (root: string, ids: readonly string[]) => void,
  ) {
    this.#timer = setInterval(() => void this.#tick(), everyMs).unref();
  }

  /** This root is in use. */
  touch(root: string): void {
    if (this.#dueMs.has(root) || this.#dueMs.size >= MAX_ROOTS) return;
    this.#dueMs.set(root, monotonicMs() + this.everyMs);
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#dueMs.clear();
  }

  async #tick(): Promise<void> {
    if (this.#reaping) return;
    this.#reaping = true;
    const nowMs = monotonicMs();
    for (const [root, dueMs] of this.#dueMs)
      if (dueMs <= nowMs) await this.#reap(root).catch(() => this.#later(root, 0));
    this.#reaping = false;
  }

  async #reap(root: string): Promise<void> {
    let nextInMs: number | null;
    do {
      const step = await this.backend.reap({ root, max: BATCH });
      if (step.expired.length > 0) this.onExpired(root, step.expired);
      nextInMs = step.nextInMs;
    } while (nextInMs === 0 && this.#dueMs.has(root));
    if (nextInMs === null) this.#dueMs.delete(root);
    else this.#later(root, nextInMs);
  }

  /** An operation may end sooner than the one that is first now: not later than the next round. */
  #later(root: string, inMs: number): void {
    if (this.#dueMs.has(root)) this.#dueMs.set(root, monotonicMs() + Math.max(this.everyMs, inMs));
  }
}
