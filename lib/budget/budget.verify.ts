import { shownHash } from '../core/keys.js';
import { MAX_AMOUNT } from './budget.results.js';
import type { Amount, BudgetRecord, Quarantined, VerifyResult } from './budget.types.js';

/** Everything that a root stores, at one instant. */
export interface BudgetSnapshot {
  readonly counters: ReadonlyMap<string, { committed: Amount; reserved: Amount; archived: Amount }>;
  readonly operations: readonly SnapshotOperation[];
  /** The ids in the expiry queue. */
  readonly pending: Pick<ReadonlySet<string>, 'has'>;
  readonly quarantined: readonly Quarantined[];
}

interface SnapshotOperation extends Pick<BudgetRecord, 'id' | 'state' | 'amount' | 'committed' | 'refunded'> {
  /** True if a newer operation has the id. */
  readonly isRenewed: boolean;
  /** The counters in which the operation counts. */
  readonly fields: readonly string[];
}

/**
 * Adds up the operations of a root and compares the sums with its counters. A problem begins with the code of
 * the rule that does not hold:
 *
 * - I2: `reserved` is the sum of pending holds.
 * - I3: `committed` is the sum of finalized operations and charges, less refunds. No operation is refunded more
 *   than it committed.
 * - I4: an operation that is not finalized has committed nothing.
 * - I5: exactly the pending holds are in the expiry queue.
 */
export function verifySnapshot({ counters, operations, pending, quarantined }: BudgetSnapshot): VerifyResult {
  const problems: string[] = [];
  const reserved = new Map<string, Amount>();
  const committed = new Map<string, Amount>();
  for (const operation of operations) {
    const { id, state, amount, refunded } = operation;
    const report = (rule: string, fault: string): void =>
      void problems.push(`${rule}: operation ${shownHash(id)} ${fault}`);
    const isPending = state === 'pending';
    if (isPending !== (!operation.isRenewed && pending.has(id)))
      report('I5', `is ${state}, which does not match the expiry queue.`);
    if (state !== 'finalized' && operation.committed !== 0)
      report('I4', `is ${state}, but has committed an amount.`);
    if (refunded > operation.committed) report('I3', 'was refunded more than it committed.');
    for (const field of operation.fields) {
      if (isPending) add(reserved, field, amount);
      add(committed, field, operation.committed - refunded);
    }
  }
  for (const [field, counter] of counters) {
    const pendingSum = reserved.get(field) ?? 0;
    if (counter.reserved !== pendingSum)
      problems.push(
        `I2: reserved is ${counter.reserved}, but the pending holds add up to ${pendingSum} (${shownHash(field)}).`,
      );
    const spent = (committed.get(field) ?? 0) + counter.archived;
    if (counter.committed !== spent)
      problems.push(
        `I3: committed is ${counter.committed}, but the operations add up to ${spent} (${shownHash(field)}).`,
      );
  }
  for (const [field, pendingSum] of reserved)
    if (pendingSum !== 0 && !counters.has(field))
      problems.push(`I2: pending holds of ${pendingSum} have no counter (${shownHash(field)}).`);
  return { ok: problems.length + quarantined.length === 0, problems, quarantined };
}

function add(sums: Map<string, Amount>, field: string, amount: Amount): void {
  sums.set(field, Math.min((sums.get(field) ?? 0) + amount, MAX_AMOUNT));
}
