import type { Crossed } from '../budget.types.js';
import {
  balanceOf,
  type Counter,
  counterOf,
  type Entry,
  limitOf,
  setLimitOf,
  type Tree,
} from './budget.memory-tree.js';

/** Changes the counters of these entries. Changes of setLimit are applied to their thresholds before. */
export function count(tree: Tree, entries: readonly Entry[], change: (counter: Counter) => void): void {
  for (const entry of entries) {
    arm(tree, entry);
    change(counterOf(tree, entry.field));
  }
}

/** Returns the thresholds that the last change has crossed. */
export const crossedBy = (tree: Tree, entries: readonly Entry[]): Crossed[] =>
  entries.flatMap((entry) => cross(tree, entry));

/**
 * Applies a change of setLimit to the thresholds of an entry, before the current step counts. A raised limit arms them
 * again: those above the current usage will be reported again.
 */
function arm(tree: Tree, entry: Entry): void {
  if (!entry.configured?.thresholds.length) return;
  const counter = counterOf(tree, entry.field);
  const set = setLimitOf(tree, entry);
  if (set === counter.seen) return;
  const before = counter.seen ?? entry.configured.limit;
  const limit = limitOf(tree, entry);
  counter.seen = set;
  if (before !== 'unlimited' && (limit === 'unlimited' || limit > before)) rearm(tree, entry);
}

/** Arms the thresholds above the current usage again. */
export function rearm(tree: Tree, entry: Entry): void {
  const counter = counterOf(tree, entry.field);
  counter.crossed = reachedBy(tree, entry).findLast((percent) => percent <= counter.crossed) ?? 0;
}

function cross(tree: Tree, entry: Entry): Crossed[] {
  const counter = counterOf(tree, entry.field);
  const crossed = reachedBy(tree, entry).filter((percent) => percent > counter.crossed);
  counter.crossed = crossed.at(-1) ?? counter.crossed;
  return crossed.map((percent) => ({ scope: entry.scope, period: entry.period, percent }));
}

/** Returns the thresholds that the current usage reaches. */
function reachedBy(tree: Tree, entry: Entry): number[] {
  const { limit, credits, committed, reserved } = balanceOf(tree, entry);
  if (limit === 'unlimited' || limit + credits === 0n) return [];
  const reaches = (percent: number): boolean =>
    (committed + reserved) * 100n >= BigInt(percent) * (limit + credits);
  return entry.configured?.thresholds.filter(reaches) ?? [];
}
