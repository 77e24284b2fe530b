import type { Audit, Loss } from '../history.js';
import { BUDGET } from '../settings.js';
import { type Facts, type Finding, groupBy, type Operation } from './facts.js';
import { byId, fateOf, lifeOf } from './once.js';

/** How far a server's clock and a worker's may be apart on when a hold ends. */
const TOLERANCE_MS = 50;

/** What is known of one hold. */
interface Hold {
  readonly amount: number;
  readonly actual: number;
  readonly fate: 'finalized' | 'maybe' | 'nothing';
  /** When the amount was surely held. */
  readonly heldMs: readonly [number, number] | undefined;
  /** From when on `actual` was surely spent. */
  readonly spentFromMs: number | undefined;
  /** It was refused to be settled while it must have been there. */
  readonly vanished: boolean;
}

/** Never more spent or held than the limit; nothing held at the end; spent what was told. */
export function checkBudgets(facts: Facts): Finding {
  const finding: Finding = { violations: [], excused: [] };
  const operations = facts.operations.filter(({ call }) =>
    ['reserve', 'finalize', 'abort'].includes(call.op),
  );
  for (const [root, all] of groupBy(operations, ({ call }) => call.on)) {
    const life = lifeOf(root, all, facts);
    const pick = (loss?: Loss): string[] =>
      facts.isExcused(...life, loss) ? finding.excused : finding.violations;
    pick().push(...checkRoot(root, byId(all).map(toHold), facts));
    pick('any key').push(...checkSums(root, facts.audits.get(root)));
  }
  return finding;
}

/** What holds of every state of a root, also of an older one: only a root in pieces is excused. */
function checkSums(root: string, audit: Audit | undefined): string[] {
  if (!audit) return [];
  const { used, reserved, problems = [] } = audit;
  return [
    ...(used > BUDGET.limit ? [`${root}: ${used} of ${BUDGET.limit} committed.`] : []),
    ...(reserved === 0 ? [] : [`${root}: ${reserved} reserved when every hold was over.`]),
    ...problems.map((problem) => `${root}: ${problem}`),
  ];
}

function toHold(operations: readonly Operation[]): Hold {
  const reserve = operations.find(({ call }) => call.op === 'reserve') as Operation;
  const settling = operations.filter(({ call }) => call.op !== 'reserve');
  const finalizes = settling.filter(({ call }) => call.op === 'finalize');
  const { call, done } = reserve;
  const endMs = call.atMs + BUDGET.ttlMs - TOLERANCE_MS;
  const fate = finalizes.length === 0 ? 'refused' : fateOf(finalizes);
  return {
    amount: call.amount ?? 0,
    actual: finalizes[0]?.call.amount ?? 0,
    fate: fate === 'done' ? 'finalized' : fate === 'unknown' ? 'maybe' : 'nothing',
    heldMs: done?.ok ? [done.atMs, Math.min(endMs, settling[0]?.call.atMs ?? Infinity)] : undefined,
    spentFromMs: finalizes.find((each) => each.done?.ok)?.done?.atMs,
    vanished: Boolean(done?.ok) && settling.some((each) => each.done?.ok === false && each.done.atMs < endMs),
  };
}

function checkRoot(root: string, holds: readonly Hold[], facts: Facts): string[] {
  const found: string[] = [];
  const { limit } = BUDGET;
  const most = mostAtOnce(holds);
  if (most > limit) found.push(`${root}: ${most} of ${limit} held or spent at once.`);
  for (const { vanished, amount } of holds)
    if (vanished) found.push(`${root}: a hold of ${amount} vanished.`);
  const audit = facts.audits.get(root);
  if (!audit) return found;
  const sum = (fate: Hold['fate']): number =>
    holds.reduce((total, hold) => total + (hold.fate === fate ? hold.actual : 0), 0);
  const [told, maybe] = [sum('finalized'), sum('maybe')];
  if (audit.used < told || audit.used > told + maybe)
    found.push(`${root}: ${audit.used} committed, but ${told} were told and ${maybe} are unknown.`);
  return found;
}

/** The greatest sum, at any moment, of what was surely held and what was surely spent. */
function mostAtOnce(holds: readonly Hold[]): number {
  const changes = holds.flatMap(({ amount, actual, heldMs, spentFromMs }): [number, number][] => [
    ...(heldMs && heldMs[0] < heldMs[1]
      ? ([
          [heldMs[0], amount],
          [heldMs[1], -amount],
        ] as [number, number][])
      : []),
    ...(spentFromMs === undefined ? [] : [[spentFromMs, actual] as [number, number]]),
  ]);
  let sum = 0;
  let most = 0;
  for (const [, change] of changes.sort(([a, x], [b, y]) => a - b || x - y))
    most = Math.max(most, (sum += change));
  return most;
}
