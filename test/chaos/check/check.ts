import type { HistoryEvent } from '../history.js';
import { checkAnswers } from './answers.js';
import { checkBudgets } from './budgets.js';
import { checkCalls, checkLeftovers, type Machine } from './calls.js';
import { checkExclusion } from './exclusion.js';
import { Facts, type Finding, groupBy } from './facts.js';
import { checkCounters, checkSecrets } from './once.js';
import { checkRates } from './rates.js';

export interface Report {
  /** What must not be, by promise. */
  readonly findings: Record<Promised, Finding>;
  readonly violations: string[];
  /** How much was looked at. */
  readonly counts: Record<string, number>;
}

const CHECKS = {
  'locks: one inside, fences rise': checkExclusion,
  'budgets: nothing overspent, nothing lost': checkBudgets,
  'secrets: exact views': checkSecrets,
  'counters: never past their max': checkCounters,
  'limits: never exceeded': checkRates,
  'once: one body at a time, one result, none after it': checkAnswers,
  'calls: settled within their deadline, no rejection unheard': checkCalls,
  'keys: none left over': checkLeftovers,
};

export type Promised = keyof typeof CHECKS;

/** Proves every promise over a whole history, or says where it was broken. */
export function check(history: readonly HistoryEvent[], machine: Machine = { slackMs: 1_000 }): Report {
  const facts = new Facts(history);
  const findings = Object.fromEntries(
    Object.entries(CHECKS).map(([promise, checkIt]) => [promise, checkIt(facts, machine)]),
  ) as Record<Promised, Finding>;
  const violations = Object.values(findings).flatMap((finding) => finding.violations);
  return { findings, violations, counts: countsOf(facts) };
}

function countsOf(facts: Facts): Record<string, number> {
  const outcomes = groupBy(
    facts.operations,
    ({ call, done }) => `${call.op}: ${done?.error ?? outcome(done?.ok)}`,
  );
  const faults = groupBy(facts.faults, ({ name }) => `fault: ${name}`);
  const sizes = [...outcomes, ...faults].map(([name, all]): [string, number] => [name, all.length]);
  return {
    ...Object.fromEntries(sizes.sort(([a], [b]) => a.localeCompare(b))),
    'sections under a lock': facts.sections.length,
    'bodies of calls that are answered once': facts.bodies.length,
    'answers that were given again': facts.operations.filter(({ done }) => done?.answer?.replayed).length,
    audits: facts.audits.size,
  };
}

const outcome = (ok: boolean | undefined): string =>
  ok === undefined ? 'never answered' : ok ? 'done' : 'refused';
