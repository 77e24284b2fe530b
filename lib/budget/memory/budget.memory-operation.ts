import type * as port from '../budget.backend.js';
import type { Entry, Operation, Tree } from './budget.memory-tree.js';
import type { Amount, BudgetRecord, BudgetRefusal } from '../budget.types.js';
import { ANY_NONCE } from '../budget.results.js';

/** Returns an operation that begins now. `facts` are what its record has beside the request. */
export function newOperation(
  { nowMs }: Tree,
  request: { root: string; id: string; amount: Amount; scopes: readonly port.LimitedScope[]; nonce?: string },
  entries: readonly Entry[],
  facts: Partial<BudgetRecord>,
): Operation {
  const { root, id, amount, scopes, nonce = ANY_NONCE } = request;
  const record: BudgetRecord = {
    ...{ root, id, kind: 'hold', state: 'pending', generation: 1, scopes: scopes.map(({ scope }) => scope) },
    ...{ amount, actual: 0, committed: 0, refunded: 0, uncovered: 0, late: false },
    ...{ createdAtMs: nowMs, expiresAtMs: nowMs, endedAtMs: null, meta: undefined },
    ...facts,
  };
  return { name: `o|${id}`, nonce, isPurged: false, record, entries, crossed: [] };
}

/** Returns the newest operation of an id, also if only its id is kept. */
export const newestOf = (tree: Tree, id: string): Operation | undefined =>
  tree.operations.get(`o|${id}`) ?? (tree.kept.get(`o|${id}`) as Operation | undefined);

/** Returns the operation that a call refers to. */
export function find(tree: Tree, { id, generation, nonce }: port.HoldRequest): Operation | undefined {
  const newest = newestOf(tree, id);
  if (!newest) return undefined;
  const isNewest = generation === 0 || generation === newest.record.generation;
  const operation = isNewest ? newest : tree.operations.get(`O|${generation}|${id}`);
  return nonce === ANY_NONCE || operation?.isPurged || operation?.nonce === nonce ? operation : undefined;
}

export const isRenewed = ({ name }: Operation): boolean => name.startsWith('O|');

export const copyRecord = ({ record }: Operation): BudgetRecord => ({
  ...record,
  scopes: [...record.scopes],
});

/** Answers with an operation and its balances, as they are now. */
export function answer(tree: Tree, operation: Operation, replayed: boolean, isAtMax = false): port.Answer {
  const { record, nonce, crossed, entries } = operation;
  const balances = entries.map((entry) => tree.balanceOf(entry));
  return { ok: true, ...record, nonce, replayed, balances, crossed, isAtMax };
}

/** Refuses a call because of the operation that has the id. */
export const refused = <const Reason extends string>(
  operation: Operation,
  reason: Reason,
): BudgetRefusal<Reason> => ({ ok: false, reason, record: copyRecord(operation) });

/**
 * Returns the answer if an earlier hold under the same id decides it. Returns undefined if a new hold may be reserved.
 */
export function replayReserve(
  tree: Tree,
  earlier: Operation,
  request: port.ReserveRequest,
): port.Outcome<port.ReserveOutcome> | undefined {
  const { state, expiresAtMs } = earlier.record;
  const isOurs = request.nonce !== ANY_NONCE && request.nonce === earlier.nonce;
  if (state === 'pending') {
    if (request.mode === 'run' && !isOurs)
      return { ...refused(earlier, state), endsInMs: expiresAtMs - tree.nowMs };
    if (!sameContent(earlier, 'hold', request)) return refused(earlier, 'conflict');
    return answer(tree, earlier, true);
  }
  if (state !== 'finalized' && request.mode !== 'reserve' && !isOurs) return undefined;
  return refused(earlier, `already_${state}`);
}

export function sameContent(
  { record }: Operation,
  kind: 'hold' | 'charge',
  { amount, scopes }: port.ReserveRequest | port.ChargeRequest,
): boolean {
  const asked = scopes.map(({ scope }) => scope).sort();
  const done = [...record.scopes].sort();
  return record.kind === kind && record.amount === amount && JSON.stringify(asked) === JSON.stringify(done);
}
