import { type Loss, NAMES_NO_LOCK } from '../history.js';
import { COMMAND_TIMEOUT_MS, HOLD_TTL_MS, LOCK, ONCE } from '../settings.js';
import type { Facts, Finding, Operation } from './facts.js';

/** What the run was made on. */
export interface Machine {
  /** How much later than its deadline a call may settle where other things have the processor. */
  readonly slackMs: number;
}

/** How a budget is settled: three times, with pauses between. */
const SETTLE_MS = 3 * COMMAND_TIMEOUT_MS + 300;

function deadlineOf({ op }: Operation['call']): number {
  switch (op) {
    case 'lock':
      return LOCK.timeoutMs + LOCK.longestBodyMs + 2 * COMMAND_TIMEOUT_MS;
    case 'once':
      return ONCE.waitMs + ONCE.longestBodyMs + 2 * COMMAND_TIMEOUT_MS;
    case 'finalize':
    case 'abort':
      return SETTLE_MS;
    default:
      return COMMAND_TIMEOUT_MS;
  }
}

/** Every call settles, in time, unless its worker was killed; and no rejection goes unheard. */
export function checkCalls(facts: Facts, { slackMs }: Machine): Finding {
  const violations = facts.unhandled.map(
    ({ worker, detail }) => `A rejection that nobody heard in worker ${worker}: ${detail}`,
  );
  for (const { call, done } of facts.operations) {
    if (!done) {
      if (!facts.killed.has(call.worker))
        violations.push(`${call.op} of ${call.on} in worker ${call.worker} never settled.`);
      continue;
    }
    const tookMs = done.atMs - call.atMs - facts.stalledMs(call.worker, call.atMs, done.atMs);
    if (tookMs > deadlineOf(call) + slackMs)
      violations.push(`${call.op} of ${call.on} took ${Math.round(tookMs)} ms (${done.error ?? 'ok'}).`);
  }
  return { violations, excused: [] };
}

/**
 * Nothing is left standing. A worker that was killed leaves its locks, which end with their TTL; a failover that
 * loses a release leaves the lock; and eviction may take a lock and leave its index.
 */
export function checkLeftovers(facts: Facts): Finding {
  const finding: Finding = { violations: [], excused: [] };
  const endMs = facts.operations.at(-1)?.call.atMs ?? 0; // they are in order
  for (const { key, problem, lock } of facts.leftovers) {
    const [, owner] = /^own (\d+) /.exec(lock ?? '') ?? [];
    const lately = (loss: Loss): boolean => facts.isExcused(endMs - HOLD_TTL_MS, endMs, loss);
    const excused =
      lock === undefined
        ? problem === NAMES_NO_LOCK && lately('any key')
        : (owner !== undefined && facts.killed.has(Number(owner))) || lately('the latest');
    (excused ? finding.excused : finding.violations).push(`${key} is left over: ${problem}.`);
  }
  return finding;
}
