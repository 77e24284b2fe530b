import { RATE } from '../settings.js';
import { type Facts, type Finding, groupBy, type Operation } from './facts.js';

/** Servers count in whole ms. */
const TOLERANCE_MS = 5;

interface Allowed {
  readonly fromMs: number;
  readonly toMs: number;
}

/** No window of time holds more than the limit of calls that surely fell into it. */
export function checkRates(facts: Facts): Finding {
  const finding: Finding = { violations: [], excused: [] };
  const allowed = facts.operations.filter(({ call, done }) => call.op === 'check' && done?.ok);
  for (const [on, calls] of groupBy(allowed, ({ call }) => call.on)) {
    const spans = calls.map(({ call, done }: Operation): Allowed => ({
      fromMs: call.atMs,
      toMs: done?.atMs ?? 0,
    }));
    for (const [i, { fromMs }] of spans.entries()) {
      const endMs = fromMs + RATE.windowMs - TOLERANCE_MS;
      const count = countWithin(spans, i, endMs);
      if (count <= RATE.limit) continue;
      const found = facts.isExcused(fromMs, endMs) ? finding.excused : finding.violations;
      found.push(`${on}: ${count} of ${RATE.limit} let in within ${RATE.windowMs} ms.`);
    }
  }
  return finding;
}

function countWithin(spans: readonly Allowed[], first: number, endMs: number): number {
  let count = 0;
  for (let i = first; i < spans.length && (spans[i] as Allowed).fromMs < endMs; i++)
    if ((spans[i] as Allowed).toMs <= endMs) count++;
  return count;
}
