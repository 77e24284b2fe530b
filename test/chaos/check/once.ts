import { COUNTER_MAX, VIEWS } from '../settings.js';
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

/** The last view of a secret burns it: who has lost its answer, and asks again, is refused. */
function fateOfView(tries: readonly Operation[]): Fate {
  const fate = fateOf(tries);
  return fate === 'refused' && tries.some(({ done }) => done?.ok === undefined) ? 'unknown' : fate;
}

export const checkCounters = (facts: Facts): Finding => checkOnce(facts, 'increment', COUNTER_MAX, fateOf);

/** Those whose maker was told that they are there: any other may be there for a while, until it is withdrawn. */
export function checkSecrets(facts: Facts): Finding {
  const created = facts.operations.filter(({ call, done }) => call.op === 'create' && done?.ok);
  return checkOnce(facts, 'view', VIEWS, fateOfView, new Set(created.map(({ call }) => call.on)));
}

/** Never more than there are, and exactly those that were told. */
function checkOnce(
  facts: Facts,
  op: 'view' | 'increment',
  max: number,
  fate: (tries: readonly Operation[]) => Fate,
  only?: ReadonlySet<string>,
): Finding {
  const finding: Finding = { violations: [], excused: [] };
  const operations = facts.operations.filter(({ call }) => call.op === op && (only?.has(call.on) ?? true));
  for (const [on, all] of groupBy(operations, ({ call }) => call.on)) {
    const found = facts.isExcused(...lifeOf(on, all, facts)) ? finding.excused : finding.violations;
    const fates = byId(all).map(fate);
    const done = fates.filter((each) => each === 'done').length;
    const unknown = fates.filter((each) => each === 'unknown').length;
    if (done > max) found.push(`${on}: ${done} of ${max} (${op}).`);
    const used = facts.audits.get(on)?.used;
    if (used === undefined) continue;
    if (used > max) finding.violations.push(`${on}: counts ${used} of ${max} (${op}).`);
    if (used < done || used > done + unknown)
      found.push(`${on}: counts ${used}, but ${done} were told and ${unknown} are unknown (${op}).`);
  }
  return finding;
}
