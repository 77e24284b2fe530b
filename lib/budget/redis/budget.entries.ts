import type { Amount } from '../budget.types.js';
import type { ConfiguredLimit } from '../budget.backend.js';
import { BudgetCalendar, periodKey } from '../budget.calendar.js';

/** The entries of an operation as scripts take them: lists joined by ';', of one element for each entry. */
export interface Entries {
  /** `c|<scope>|<period>|<startMs>` for each entry. */
  readonly fields: string;
  /** A decimal, or `u` for unlimited. */
  readonly limits: string;
  /** Percentages joined by ','. An entry without thresholds has `-`. Where no entry has any, the list is one `-`. */
  readonly thresholds: string;
  /** When each window ends. 0: never. */
  readonly ends: string;
  /** 1 if the limit is configured for the type of the scope, otherwise 0. */
  readonly inherited: string;
  /** From here until before `openUntilMs` (0: without end) the windows of all entries are open. */
  readonly openFromMs: number;
  readonly openUntilMs: number;
  /** When the last of the windows ends. 0 if one never ends. */
  readonly lastEndMs: number;
}

interface NamedScope {
  /** The scope as it is stored. */
  readonly name: string;
  readonly limits: readonly ConfiguredLimit[];
}

/** The entries of one scope without its name. */
interface Windows extends Omit<Entries, 'fields'> {
  readonly names: readonly string[];
}

export const encodeLimit = (limit: Amount | 'unlimited'): string =>
  limit === 'unlimited' ? 'u' : String(limit);

/** Builds {@link Entries}. It keeps those of a list of limits while its windows are open. */
export class EntryEncoder {
  readonly #calendar = new BudgetCalendar();
  readonly #kept = new WeakMap<readonly ConfiguredLimit[], Windows>();

  encode(scopes: readonly NamedScope[], nowMs: number): Entries {
    const all = scopes.map(({ limits }) => this.#windowsOf(limits, nowMs));
    const list = (part: 'limits' | 'thresholds' | 'ends' | 'inherited'): string =>
      all.map((windows) => windows[part]).join(';');
    const thresholds = list('thresholds');
    return {
      fields: scopes
        .map(({ name }, i) => all[i]?.names.map((window) => `c|${name}|${window}`).join(';'))
        .join(';'),
      limits: list('limits'),
      thresholds: /\d/.test(thresholds) ? thresholds : '-',
      ends: list('ends'),
      inherited: list('inherited'),
      openFromMs: Math.max(...all.map(({ openFromMs }) => openFromMs)),
      openUntilMs: firstOf(all.map(({ openUntilMs }) => openUntilMs)),
      lastEndMs: lastOf(all.map(({ lastEndMs }) => lastEndMs)),
    };
  }

  #windowsOf(limits: readonly ConfiguredLimit[], nowMs: number): Windows {
    const kept = this.#kept.get(limits);
    if (kept && kept.openFromMs <= nowMs && (nowMs < kept.openUntilMs || kept.openUntilMs === 0)) return kept;
    const open = limits.map(({ period }) => this.#calendar.windowAt(period, nowMs));
    const ends = open.map(({ endMs }) => endMs ?? 0);
    const windows = {
      names: open.map(({ startMs }, i) => `${periodKey((limits[i] as ConfiguredLimit).period)}|${startMs}`),
      limits: limits.map(({ limit }) => encodeLimit(limit)).join(';'),
      thresholds: limits.map((limit) => limit.thresholds.join(',') || '-').join(';'),
      ends: ends.join(';'),
      inherited: limits.map(({ inherited }) => (inherited ? 1 : 0)).join(';'),
      openFromMs: Math.max(...open.map(({ startMs }) => startMs)),
      openUntilMs: firstOf(ends),
      lastEndMs: lastOf(ends),
    };
    this.#kept.set(limits, windows);
    return windows;
  }
}

// Of ends, where 0 is never.
const firstOf = (ends: readonly number[]): number =>
  ends.reduce((first, endMs) => (first === 0 || (endMs > 0 && endMs < first) ? endMs : first), 0);
const lastOf = (ends: readonly number[]): number => (ends.includes(0) ? 0 : Math.max(...ends));
