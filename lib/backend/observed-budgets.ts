import type { BudgetBackend } from '../budget/budget.backend.js';
import type { BudgetEvents } from '../budget/budget.service.js';
import type { Crossed } from '../budget/budget.types.js';
import { monotonicMs } from '../clock.js';
import { type Descriptions, inFrontOf, observe } from '../telemetry/observe.js';
import type { Emit, Facts } from '../telemetry/telemetry.types.js';

/** Tells of every operation on budgets, and of each threshold that one of them crosses. */
export const observedBudgets = (backend: BudgetBackend, emit: Emit): BudgetBackend =>
  tellingThresholds(observe(backend, 'budget', BUDGET, emit), emit);

/** Tells of what no operation shows: a hold that expired, a cost that could not be read. One event each. */
export function budgetEvents(emit: Emit | undefined): BudgetEvents {
  if (!emit) return {};
  const tell = (type: 'expired' | 'cost', reason: string, key: string): void =>
    emit({ feature: 'budget', type, result: 'fail', reason, key, durationMs: 0 });
  return {
    onExpired: (_root, ids) => {
      for (const id of ids) tell('expired', 'expired', id);
    },
    onUnreadableCost: (id) => tell('cost', 'unreadable', id),
  };
}

const ofOperation = (
  result: { ok: true } | { ok: false; reason: string } | undefined,
  { id }: { id: string },
): Facts => ({ key: id, ...(result?.ok === false ? { reason: result.reason } : {}) });

const BUDGET: Descriptions<BudgetBackend> = {
  reserve: ofOperation,
  charge: ofOperation,
  finalize: ofOperation,
  abort: ofOperation,
  extend: ofOperation,
  refund: ofOperation,
  credit: (result, { scope }) => ofOperation(result, { id: scope.scope }),
  setLimit: (_, { scope }) => ({ key: scope }),
  balance: (_, { scope }) => ({ key: scope.scope }),
  get: (record, { id }) => ({ key: id, ...(record === null ? { reason: 'not_found' } : {}) }),
  list: (_, { root }) => ({ key: root }),
  reap: (_, { root }) => ({ key: root }),
  verify: (result, { root }) => ({ key: root, ...(result?.ok === false ? { reason: 'unbalanced' } : {}) }),
};

/** How many steps without an answer are remembered, to tell of what they crossed when they are tried again. */
const MAX_UNANSWERED = 1_000;

type Step = 'reserve' | 'charge' | 'finalize';
type Result = { readonly ok: boolean; readonly replayed?: boolean; readonly crossed?: readonly Crossed[] };
type Request = { root: string; id: string; onLate?(result: Result): void; onResent?(): void };

/**
 * A step that is tried again repeats what it crossed. That is told once: the first time that its answer arrives in this
 * process.
 */
function tellingThresholds(port: BudgetBackend, emit: Emit): BudgetBackend {
  const unanswered = new Set<string>();
  const telling = <Name extends Step>(step: Name): BudgetBackend[Name] =>
    (async (request: Request): Promise<Result> => {
      const startMs = monotonicMs();
      const name = `${step} ${request.id} ${request.root}`;
      let isResent = false;
      const tell = (result: Result): void => {
        const isFirst = unanswered.delete(name) || isResent || result.replayed !== true;
        if (!result.ok || !isFirst) return;
        for (const each of result.crossed ?? []) emit(thresholdEvent(each, monotonicMs() - startMs));
      };
      const call = { ...request, onLate: tell, onResent: () => (isResent = true) };
      try {
        const result = await (port[step] as unknown as (request: Request) => Promise<Result>)(call);
        tell(result);
        return result;
      } catch (error) {
        if (unanswered.size < MAX_UNANSWERED) unanswered.add(name);
        throw error;
      }
    }) as unknown as BudgetBackend[Name];
  return inFrontOf(port, {
    reserve: telling('reserve'),
    charge: telling('charge'),
    finalize: telling('finalize'),
  });
}

const thresholdEvent = ({ scope, period, percent }: Crossed, durationMs: number): Parameters<Emit>[0] => ({
  feature: 'budget',
  type: 'threshold',
  result: 'ok',
  percent,
  scopeType: scope.split(':', 1)[0],
  period,
  key: scope,
  durationMs,
});
