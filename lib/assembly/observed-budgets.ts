import type { Answer, BudgetBackend } from '../budget/budget.backend.js';
import { typeOf } from '../budget/budget.results.js';
import type { BudgetEvents } from '../budget/budget.options.js';
import type { Exceeded } from '../budget/budget.types.js';
import { type Descriptions, inFrontOf, observe, type Refusal, refusalIn } from '../telemetry/observe.js';
import type { Emit, Facts } from '../telemetry/telemetry.types.js';

/** Returns a budget backend that emits an event for every operation, and for each threshold that an operation crosses. */
export const observedBudgets = (backend: BudgetBackend, emit: Emit): BudgetBackend =>
  withThresholdEvents(observe(backend, 'budget', BUDGET, emit), emit);

/** Returns the listeners for what no single operation shows: a hold that expired, and a cost that could not be read. */
export function budgetEvents(emit: Emit | undefined): BudgetEvents {
  if (!emit) return {};
  const report = (type: 'expired' | 'quarantined' | 'cost', reason: string, key: string): void =>
    emit({ feature: 'budget', type, result: 'fail', reason, key, durationMs: 0 });
  return {
    emit,
    onExpired: (_root, ids) => {
      for (const id of ids) report('expired', 'expired', id);
    },
    onQuarantined: (root, records) => {
      for (const _ of records) report('quarantined', 'unreadable', root);
    },
    onUnreadableCost: (id) => report('cost', 'unreadable', id),
  };
}

const ofOperation = (result: { ok: true } | Refusal | undefined, { id }: { id: string }): Facts => ({
  key: id,
  reason: refusalIn(result),
});

/** A spending, or a refusal for want of room. */
function ofSpending(result: Result | undefined, request: Request): Facts {
  const { key, reason } = ofOperation(result, request);
  if (result?.ok && result.committed > 0 && request.isFirst?.(result))
    return { key, spent: result.committed, scopeTypes: typesOf(result.balances) };
  const violations = result && 'violations' in result ? result.violations : undefined;
  return { key, reason, scopeTypes: violations && typesOf(violations) };
}

const typesOf = (scopes: readonly { readonly scope: string }[]): string[] => [
  ...new Set(scopes.map(({ scope }) => typeOf(scope))),
];

/** Which roots are due concerns the reaper only, and what an operator lists is no operation of the app. */
const BUDGET: Omit<Descriptions<BudgetBackend>, 'roots' | 'allRoots' | 'scopes'> = {
  reserve: ofSpending, // Of a refusal only: a reserve spends nothing.
  charge: ofSpending,
  finalize: ofSpending,
  abort: ofOperation,
  extend: ofOperation,
  refund: ofOperation,
  credit: (result, { scope }) => ofOperation(result, { id: scope.scope }),
  setLimit: (_, { scope }) => ({ key: scope.scope }),
  balance: (_, { scope }) => ({ key: scope.scope }),
  get: (record, { id }) => ({ key: id, reason: record === null ? 'not_found' : undefined }),
  list: (_, { root }) => ({ key: root }),
  reap: (_, { root }) => ({ key: root }),
  verify: (result, { root }) => ({ key: root, reason: result?.ok === false ? 'unbalanced' : undefined }),
};

/** How many unanswered calls are remembered, so that a retry reports the thresholds that the first try crossed. */
const MAX_UNANSWERED = 1_000;

type Step = 'reserve' | 'charge' | 'finalize';
type Result = Answer | Exceeded | Refusal;
type Request = {
  root: string;
  id: string;
  onLate?(result: Result): void;
  onResent?(): void;
  /** Whether this answer is the first that arrives in this process of what was done. */
  isFirst?(answer: Answer): boolean;
};

/**
 * Emits an event for each threshold that a call crosses. A retry returns the same thresholds again, and what was spent. Both
 * are reported once, when the first answer arrives in this process.
 */
function withThresholdEvents(port: BudgetBackend, emit: Emit): BudgetBackend {
  const unanswered = new Set<string>();
  const withEvents = <Name extends Step>(step: Name): BudgetBackend[Name] =>
    (async (request: Request): Promise<Result> => {
      const startMs = performance.now();
      const name = `${step} ${request.id} ${request.root}`;
      let isResent = false;
      const isFirst = ({ replayed }: Answer): boolean => isResent || !replayed || unanswered.has(name);
      const report = (result: Result): void => {
        const crossed = result.ok && isFirst(result) ? result.crossed : [];
        unanswered.delete(name);
        for (const { scope, period, percent } of crossed) {
          const threshold = { percent, scopeType: typeOf(scope), period, key: scope };
          emit({
            feature: 'budget',
            type: 'threshold',
            result: 'ok',
            durationMs: performance.now() - startMs,
            ...threshold,
          });
        }
      };
      // The call has ended with an error, and its event had the code.
      const reportLate = (result: Result): void => {
        const { key, spent, scopeTypes } = ofSpending(result, call);
        const durationMs = performance.now() - startMs;
        if (spent !== undefined)
          emit({ feature: 'budget', type: step, result: 'ok', key, durationMs, spent, scopeTypes });
        report(result);
      };
      const call = { ...request, isFirst, onLate: reportLate, onResent: () => (isResent = true) };
      try {
        const result = await (port[step] as unknown as (request: Request) => Promise<Result>)(call);
        report(result);
        return result;
      } catch (error) {
        if (unanswered.size < MAX_UNANSWERED) unanswered.add(name);
        throw error;
      }
    }) as unknown as BudgetBackend[Name];
  return inFrontOf(port, {
    reserve: withEvents('reserve'),
    charge: withEvents('charge'),
    finalize: withEvents('finalize'),
  });
}
