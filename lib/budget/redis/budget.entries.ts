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

/** The entries of one scope without its name. Each list begins with its separator. */
interface Windows extends Omit<Entries, 'fields'> {
  readonly names: readonly string[];
  readonly hasThresholds: boolean;
}

export const encodeLimit = (limit: Amount | 'unlimited'): string =>
  limit === 'unlimited' ? 'u' : String(limit);

/** Builds {@link Entries}. It keeps those of a list of limits while its windows are open. */
export class EntryEncoder {
  readonly #calendar = new BudgetCalendar();
  readonly #kept = new WeakMap<readonly ConfiguredLimit[], Windows>();

  encode(scopes: readonly NamedScope[], nowMs: number): Entries {
    let [fields, limits, thresholds, ends, inherited] = ['', '', '', '', ''];
    let [openFromMs, openUntilMs, lastEndMs, hasThresholds] = [0, Infinity, 0, false];
    for (const scope of scopes) {
      const windows = this.#windowsOf(scope, nowMs);
      for (const window of windows.names) fields += `;c|${scope.name}|${window}`;
      limits += windows.limits;
      thresholds += windows.thresholds;
      hasThresholds ||= windows.hasThresholds;
      ends += windows.ends;
      inherited += windows.inherited;
      openFromMs = Math.max(openFromMs, windows.openFromMs);
      openUntilMs = Math.min(openUntilMs, windows.openUntilMs);
      lastEndMs = Math.max(lastEndMs, windows.lastEndMs);
    }
    return {
      fields: fields.slice(1),
      limits: limits.slice(1),
      thresholds: hasThresholds ? thresholds.slice(1) : '-',
      ends: ends.slice(1),
      inherited: inherited.slice(1),
      openFromMs,
      openUntilMs: openUntilMs === Infinity ? 0 : openUntilMs,
      lastEndMs: lastEndMs === Infinity ? 0 : lastEndMs,
    };
  }

  #windowsOf({ limits }: NamedScope, nowMs: number): Windows {
    const kept = this.#kept.get(limits);
    if (kept && kept.openFromMs <= nowMs && nowMs < kept.openUntilMs) return kept;
    const windows = this.#open(limits, nowMs);
    this.#kept.set(limits, windows);
    return windows;
  }

  #open(limits: readonly ConfiguredLimit[], nowMs: number): Windows {
    const entries = limits.map((limit) => {
      const { startMs, endMs } = this.#calendar.windowAt(limit.period, nowMs);
      const thresholds = limit.thresholds.join(',') || '-';
      return { key: periodKey(limit.period), limit, thresholds, startMs, endMs: endMs ?? Infinity };
    });
    type Entry = (typeof entries)[number];
    const list = (word: (entry: Entry) => string | number): string =>
      entries.map((entry) => `;${word(entry)}`).join('');
    const ends = entries.map(({ endMs }) => endMs);
    return {
      names: entries.map(({ key, startMs }) => `${key}|${startMs}`),
      limits: list(({ limit }) => encodeLimit(limit.limit)),
      thresholds: list(({ thresholds }) => thresholds),
      hasThresholds: entries.some(({ thresholds }) => thresholds !== '-'),
      ends: list(({ endMs }) => (endMs === Infinity ? 0 : endMs)),
      inherited: list(({ limit }) => (limit.inherited ? 1 : 0)),
      openFromMs: Math.max(0, ...entries.map(({ startMs }) => startMs)),
      openUntilMs: Math.min(Infinity, ...ends),
      lastEndMs: Math.max(0, ...ends),
    };
  }
}
