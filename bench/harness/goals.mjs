// A goal: what is measured, ours, the best peer's, and the bound. `exact` figures are the same on every machine.
import { format, table } from './table.mjs';

/** Makes a goal. `atMost` or `atLeast` is its bound, or `is` where the value must be exactly that. */
export function goal(id, what, ours, bound, peer) {
  return { id, what, ours, ...bound, peer };
}

export function isMet({ ours, atMost, atLeast, is }) {
  if (atMost !== undefined) return ours <= atMost;
  if (atLeast !== undefined) return ours >= atLeast;
  return ours === is;
}

function boundOf({ atMost, atLeast, is }) {
  if (atMost !== undefined) return `at most ${format(atMost)}`;
  return atLeast !== undefined ? `at least ${format(atLeast)}` : format(is);
}

/** The peer with the best figure: `{ name, value }`. */
export function best(candidates, better) {
  const known = candidates.filter(({ value }) => Number.isFinite(value));
  return known.sort((a, b) => (better === 'lower' ? a.value - b.value : b.value - a.value))[0];
}

export function goalTable(goals) {
  return table(
    'Goals',
    goals.map((each) => ({
      goal: each.id,
      what: each.what,
      ours: each.ours,
      'best peer': each.peer ? `${format(each.peer.value)} (${each.peer.name})` : '-',
      bound: boundOf(each),
      met: isMet(each) ? 'yes' : 'NO',
    })),
  );
}

export function verdict(goals) {
  const short = goals.filter((each) => !isMet(each));
  if (short.length === 0) return `All ${goals.length} figures meet their goals.`;
  const line = (each) => `  ${each.id}  ${each.what}: ${format(each.ours)}, ${boundOf(each)}`;
  return [`${short.length} of ${goals.length} figures fall short of their goals:`, ...short.map(line)].join(
    '\n',
  );
}
