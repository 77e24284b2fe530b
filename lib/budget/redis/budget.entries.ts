import { type BudgetCalendar, parsePeriodKey, periodKey } from '../budget.calendar.js';
import type { ConfiguredLimit } from '../budget.backend.js';
import type { Period } from '../budget.types.js';

/**
 * The entries of an operation as the scripts take them: lists joined by ';', one element for each scope,
 * period and window.
 */
export interface Entries {
  /** Joined by ','. */
  readonly scopes: string;
  /** `~`, then `c|<scope>|<period>|<startMs>` for each entry. */
  readonly fields: string;
  /** A decimal, `u` for unlimited, or `-` if no limit is configured. */
  readonly limits: string;
  /**
   * Percentages joined by ','. An entry without thresholds has `-`. Where no entry has any, the whole list is
   * one `-`.
   */
  readonly thresholds: string;
  /** When each window ends. 0: never. */
  readonly ends: string;
  /** 1 if the limit is configured for the type of the scope, otherwise 0. */
  readonly inherited: string;
  /**
   * From `openFromMs` until before `openUntilMs` the windows of all entries are open. An `openUntilMs` of 0 stands for
   * no end.
   */
  readonly openFromMs: number;
  readonly openUntilMs: number;
  /** When the last of the windows ends. 0 if one never ends. */
  readonly lastEndMs: number;
  /** 1 if every scope has a configured limit, and no period was learned from the server. Otherwise 0. */
  readonly plain: number;
}

export const encodeLimit = (limit: bigint | 'unlimited'): string =>
  limit === 'unlimited' ? 'u' : String(limit);

/** Builds {@link Entries} for one instant. */
export class EntryList {
  readonly #scopes: string[] = [];
  readonly #limits: string[] = [];
  readonly #thresholds: string[] = [];
  readonly #ends: number[] = [];
  readonly #inherited: number[] = [];
  #fields = '~';
  #plain = 1;
  #hasThresholds = false;
  #openFromMs = 0;
  #openUntilMs = Infinity;
  #lastEndMs = 0;
  #endsAtAll = true;

  constructor(
    private readonly calendar: BudgetCalendar,
    private readonly nowMs: number,
  ) {}

  /** @param learned - keys of periods that only setLimit limits */
  addScope(name: string, limits: readonly ConfiguredLimit[], learned: Iterable<string> = []): void {
    this.#scopes.push(name);
    if (limits.length === 0) this.#plain = 0;
    const known = new Set<string>();
    for (const limit of limits) {
      const key = periodKey(limit.period);
      known.add(key);
      this.#add(name, key, limit.period, limit);
    }
    for (const key of learned) {
      if (known.has(key)) continue;
      this.#plain = 0;
      this.#add(name, key, parsePeriodKey(key));
    }
  }

  entries(): Entries {
    return {
      scopes: this.#scopes.join(','),
      fields: this.#fields,
      limits: this.#limits.join(';'),
      thresholds: this.#hasThresholds ? this.#thresholds.join(';') : '-',
      ends: this.#ends.join(';'),
      inherited: this.#inherited.join(';'),
      openFromMs: this.#openFromMs,
      openUntilMs: this.#openUntilMs === Infinity ? 0 : this.#openUntilMs,
      lastEndMs: this.#endsAtAll ? this.#lastEndMs : 0,
      plain: this.#plain,
    };
  }

  #add(name: string, key: string, period: Period, configured?: ConfiguredLimit): void {
    const { startMs, endMs } = this.calendar.windowAt(period, this.nowMs);
    this.#fields += `;c|${name}|${key}|${startMs}`;
    this.#limits.push(configured ? encodeLimit(configured.limit) : '-');
    const percents = configured?.thresholds ?? [];
    this.#thresholds.push(percents.length > 0 ? percents.join(',') : '-');
    this.#hasThresholds ||= percents.length > 0;
    this.#inherited.push(configured?.inherited ? 1 : 0);
    this.#ends.push(endMs ?? 0);
    this.#openFromMs = Math.max(this.#openFromMs, startMs);
    if (endMs === null) this.#endsAtAll = false;
    else {
      this.#openUntilMs = Math.min(this.#openUntilMs, endMs);
      this.#lastEndMs = Math.max(this.#lastEndMs, endMs);
    }
  }
}
