// A goal: what is measured, ours, that of the version before, the best peer's, and the bound.
import { format, table } from './table.mjs';

const BETTER = { atLeast: (a, b) => b.value - a.value, atMost: (a, b) => a.value - b.value };

/**
 * Returns a function that makes the goals of a part.
 *
 * @param ours - the name of the contestant that is judged; its `, before` is shown beside it
 * @param names - of all contestants that took part
 */
export function judging(ours, names) {
  const before = `${ours}, before`;
  /**
   * @param figure - returns the figure of a contestant, by its name
   * @param bound - `atMost`, `atLeast` or `is`
   * @param peers - the names of those that ours is compared with
   * @param times - returns how many times the figure of one contestant is that of another, in one round. With it the bound
   * is of ours against the best peer.
   */
  return function judge(id, what, figure, bound, { peers = [], times } = {}) {
    const known = peers
      .filter((name) => names.includes(name))
      .map((name) => ({ name, value: figure(name) }))
      .filter(({ value }) => Number.isFinite(value));
    const peer = known.sort(BETTER[Object.keys(bound)[0]] ?? BETTER.atMost)[0];
    const goal = { id, what, ours: figure(ours), ...bound, peer };
    if (names.includes(before)) goal.before = figure(before);
    if (times) goal.ratio = peer ? times(ours, peer.name) : NaN;
    return goal;
  };
}

const judged = ({ ours, ratio }) => ratio ?? ours;

export function isMet(goal) {
  const { atMost, atLeast, is } = goal;
  if (atMost !== undefined) return judged(goal) <= atMost;
  if (atLeast !== undefined) return judged(goal) >= atLeast;
  return judged(goal) === is;
}

function boundOf({ atMost, atLeast, is, ratio }) {
  const times = ratio === undefined ? '' : ' x';
  if (atMost !== undefined) return `at most ${format(atMost)}${times}`;
  return atLeast !== undefined ? `at least ${format(atLeast)}${times}` : format(is);
}

const nameOf = ({ id, what }) => `${id} ${what}`;

/** One table of all goals. `half` are those of half a core, of which the judged figures are shown. */
export function goalTable(goals, half = []) {
  const halves = new Map(half.map((each) => [nameOf(each), each]));
  const hasBefore = goals.some(({ before }) => before !== undefined);
  const rows = goals.map((each) => {
    const onHalf = halves.get(nameOf(each));
    return {
      goal: each.id,
      what: each.what,
      ours: each.ours,
      ...(hasBefore && { before: each.before }),
      'best peer': each.peer ? `${format(each.peer.value)} (${each.peer.name})` : '-',
      ratio: each.ratio,
      ...(half.length > 0 && { 'half a core': onHalf && judged(onHalf) }),
      bound: boundOf(each),
      met: isMet(each) && (!onHalf || isMet(onHalf)) ? 'yes' : 'NO',
    };
  });
  return table('Goals', rows);
}

export function verdict(goals) {
  const short = goals.filter((each) => !isMet(each));
  if (short.length === 0) return `All ${goals.length} figures meet their goals.`;
  const line = (each) => `  ${each.id}  ${each.what}: ${format(judged(each))}, ${boundOf(each)}`;
  return [`${short.length} of ${goals.length} figures fall short of their goals:`, ...short.map(line)].join(
    '\n',
  );
}
