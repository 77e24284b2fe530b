import { type Facts, type Finding, groupBy, type Operation } from './facts.js';

/** What became of something that is done once, however often it was asked for. */
export type Fate = 'done' | 'refused' | 'unknown';

export function fateOf(tries: readonly Operation[]): Fate {
  if (tries.some(({ done }) => done?.ok === true)) return 'done';
  const last = tries.at(-1)?.done;
  return last?.ok === false ? 'refused' : 'unknown';
}

export const byId = (operations: readonly Operation[]): Operation[][] => [
  ...groupBy(operations, ({ call }) => call.id ?? '').values(),
];

/** Since its first call until its audit. */
export function lifeOf(on: string, operations: readonly Operation[], facts: Facts): [number, number] {
  const ends = operations.map(({ call, done }) => done?.atMs ?? call.atMs);
  const audit = facts.audits.get(on)?.atMs ?? 0;
  return [operations[0]?.call.atMs ?? 0, Math.max(audit, ...ends)];
}

/** Views of secrets and counts of counters: never more than there are, and exactly those that were told. */
export function checkOnce(facts: Facts, op: 'view' | 'increment', max: number): Finding {
  const finding: Finding = { violations: [], excused: [] };
  const operations = facts.operations.filter(({ call }) => call.op === op);
  for (const [on, all] of groupBy(operations, ({ call }) => call.on)) {
    const found = facts.isExcused(...lifeOf(on, all, facts)) ? finding.excused : finding.violations;
    const fates = byId(all).map(fateOf);
    const done = fates.filter((fate) => fate === 'done').length;
    const unknown = fates.filter((fate) => fate === 'unknown').length;
    if (done > max) found.push(`${on}: ${done} of ${max} (${op}).`);
    const used = facts.audits.get(on)?.used;
    if (used === undefined) continue;
    if (used < done || used > Math.min(max, done + unknown))
      found.push(`${on}: counts ${used}, but ${done} were told and ${unknown} are unknown (${op}).`);
  }
  return finding;
}
