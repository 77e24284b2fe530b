import type { ConfiguredLimit, LimitedScope } from '../budget.backend.js';
import { BudgetCalendar, periodKey } from '../budget.calendar.js';
import { tooLarge } from '../budget.limits.js';
import {
  MAX_AMOUNT,
  availableOf,
  effectiveOf,
  exceeded,
  isFull,
  reaches,
  typeOf,
} from '../budget.results.js';
import type * as budget from '../budget.types.js';
import { DueQueue } from './due-queue.js';

export interface Counter {
  committed: budget.Amount;
  reserved: budget.Amount;
  credits: budget.Amount;
  /** What purged operations had committed, less their refunds. `committed` includes it. */
  archived: budget.Amount;
  /** The highest threshold that was crossed, in percent. */
  crossed: number;
  /** The credits at the last check of the thresholds, and the limit if setLimit had set another one than the configured. */
  seen: { readonly limit?: budget.Amount | 'unlimited' | undefined; readonly credits: budget.Amount };
}

/** One scope, period and window in which an operation counts. */
export interface Entry {
  readonly field: string;
  readonly scope: string;
  readonly period: budget.Period;
  readonly window: budget.BudgetWindow;
  readonly configured: ConfiguredLimit;
}

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

export interface Operation {
  /** As in Redis: `o|<id>` for the newest operation of an id, and `O|<generation>|<id>` for an older one. */
  name: string;
  /** The nonce of the call that created the operation. */
  readonly nonce: string;
  /** True once the record is purged, so that only its id is kept. */
  isPurged: boolean;
  readonly record: Mutable<budget.BudgetRecord>;
  readonly entries: readonly Entry[];
  crossed: readonly budget.Crossed[];
}

/** The state of one root. The Redis backend keeps the same state in four keys. */
export class Tree {
  readonly counters = new Map<string, Counter>();
  /** The limits of setLimit, by scope and period. */
  readonly limits = new Map<string, budget.Amount | 'unlimited'>();
  readonly operations = new Map<string, Operation>();
  /** What is kept of ids: finalized operations `o|<id>`, and the contents of refunds `r|<id>` and credits `k|<id>`. */
  readonly kept = new DueQueue<Operation | string>();
  /** The ids of pending holds, by expiry. */
  readonly pending = new DueQueue();
  /** The names of records and counters to purge, by time. */
  readonly garbage = new DueQueue();
  /** The ids of expired holds that reap has not reported yet. */
  readonly unreported: string[] = [];
  /** The time of the current call. */
  nowMs = 0;

  constructor(readonly retentionMs: number) {}

  /** Returns an entry for every limit of these scopes. */
  entriesOf(scopes: readonly LimitedScope[]): Entry[] {
    return scopes.flatMap(({ scope, limits }) =>
      limits.map((configured): Entry => {
        const { period } = configured;
        const window = calendar.windowAt(period, this.nowMs);
        const field = `${limitName(scope, period)}|${window.startMs}`;
        return { field, scope, period, window, configured };
      }),
    );
  }

  #counterOf(field: string): Counter {
    let counter = this.counters.get(field);
    if (!counter) {
      counter = { committed: 0, reserved: 0, credits: 0, archived: 0, crossed: 0, seen: { credits: 0 } };
      this.counters.set(field, counter);
    }
    return counter;
  }

  /**
   * Returns the limit of an entry. One of setLimit for the scope itself comes first, and then one for its type, if no limit
   * is configured for the scope itself.
   */
  #limitOf({ scope, period, configured }: Entry): budget.Amount | 'unlimited' {
    const ofType = configured.inherited ? this.limits.get(limitName(typeOf(scope), period)) : undefined;
    return this.limits.get(limitName(scope, period)) ?? ofType ?? configured.limit;
  }

  balanceOf(entry: Entry): budget.Balance {
    const { committed = 0, reserved = 0, credits = 0 } = this.counters.get(entry.field) ?? {};
    const sums = { limit: this.#limitOf(entry), credits, committed, reserved };
    const { scope, period, window } = entry;
    return { scope, period, window, ...sums, available: availableOf(sums) };
  }

  /** Returns the part of an amount that fits into all entries. */
  coveredOf(entries: readonly Entry[], amount: budget.Amount): budget.Amount {
    const rooms = entries.map((entry) => this.balanceOf(entry).available);
    return Math.min(amount, ...rooms.filter((room) => room !== 'unlimited'));
  }

  /**
   * Returns a denial where an entry has too little room. An amount of 0 always fits. Throws where a sum would pass the
   * largest amount.
   */
  exceededBy(entries: readonly Entry[], requested: budget.Amount): budget.Exceeded | undefined {
    const balances = entries.map((entry) => this.balanceOf(entry));
    const fitting = balances.filter((balance) => !isFull(balance, requested));
    if (fitting.some(({ committed, reserved }) => requested > MAX_AMOUNT - committed - reserved))
      throw tooLarge();
    return fitting.length === balances.length ? undefined : exceeded(balances, requested, this.nowMs);
  }

  /** Changes the counters of these entries, and has them purged a moment after the last operation that uses them. */
  count(entries: readonly Entry[], change: (counter: Counter) => void, fromMs = this.nowMs): void {
    for (const { field, window } of entries) {
      change(this.#counterOf(field));
      if (window.endMs === null) continue;
      const atMs = Math.max(window.endMs, fromMs) + this.retentionMs + 1;
      if (atMs > (this.garbage.at(`c|${field}`) ?? 0)) this.garbage.set(`c|${field}`, atMs);
    }
  }

  /**
   * Adds to what is committed. A sum stops at the largest amount and at 0, since what is spent is never refused. Returns
   * whether one has stopped. That of a window that was forgotten has begun at 0 again, and says nothing.
   */
  commit(entries: readonly Entry[], amount: budget.Amount): boolean {
    let hasStopped = false;
    this.count(entries, (counter) => {
      const before = counter.committed;
      counter.committed = Math.max(0, Math.min(before + amount, MAX_AMOUNT));
      hasStopped ||= before > 0 && counter.committed !== before + amount;
    });
    return hasStopped;
  }

  /**
   * Returns the thresholds that a step reaches which has added this much. A raised limit and a credit arm the thresholds
   * again that were not reached before the step.
   */
  crossedBy(entries: readonly Entry[], added: budget.Amount): budget.Crossed[] {
    return entries.flatMap((entry) =>
      this.#cross(entry, added).map((percent) => ({ scope: entry.scope, period: entry.period, percent })),
    );
  }

  #cross(entry: Entry, added: budget.Amount): number[] {
    const { thresholds, limit: usual } = entry.configured;
    if (thresholds.length === 0) return [];
    const counter = this.#counterOf(entry.field);
    const { limit, credits, committed, reserved } = this.balanceOf(entry);
    const used = committed + reserved;
    const whole = wholeOf(limit, credits);
    const isRaised = whole > wholeOf(counter.seen.limit ?? usual, counter.seen.credits);
    const isReached = (sum: budget.Amount, percent: number): boolean =>
      whole > 0 && whole < Infinity && reaches(sum, percent, whole);
    const highest = counter.crossed;
    const isOld = (percent: number): boolean =>
      percent <= highest && (!isRaised || isReached(used - added, percent));
    const reached = thresholds.filter((percent) => isOld(percent) || isReached(used, percent));
    counter.crossed = Math.max(isRaised ? 0 : highest, ...reached);
    counter.seen = { limit: limit === usual ? undefined : limit, credits };
    return reached.filter((percent) => !isOld(percent));
  }
}

export const limitName = (scope: string, period: budget.Period): string => `${scope}|${periodKey(period)}`;

/** Remembers the last window of each period, for all roots. */
const calendar = new BudgetCalendar();

const wholeOf = (limit: budget.Amount | 'unlimited', credits: budget.Amount): budget.Amount =>
  limit === 'unlimited' ? Infinity : effectiveOf(limit, credits);
