import { hashKey } from '../keys.js';
import type { HoldState, VerifyResult } from './budget.types.js';

/** Everything that a root holds, at one instant. */
export interface BudgetSnapshot {
  readonly counters: ReadonlyMap<
    string,
    { readonly committed: bigint; readonly reserved: bigint; readonly archived: bigint }
  >;
  readonly operations: readonly SnapshotOperation[];
  /** Ids that expiry watches. */
  readonly pending: ReadonlySet<string>;
}

export interface SnapshotOperation {
  readonly id: string;
  /** A newer one has its id. */
  readonly isRenewed: boolean;
  readonly state: HoldState;
  readonly amount: bigint;
  readonly committed: bigint;
  readonly refunded: bigint;
  /** The counters it counts in. */
  readonly fields: readonly string[];
}

/** Adds up a root's operations and compares with its counters: invariants I2 to I5. */
export function verifySnapshot({ counters, operations, pending }: BudgetSnapshot): VerifyResult {
  const problems: string[] = [];
  const reserved = new Map<string, bigint>();
  const committed = new Map<string, bigint>();
  for (const operation of operations) {
    const isPending = operation.state === 'pending';
    if (isPending !== (!operation.isRenewed && pending.has(operation.id)))
      problems.push(
        `I5: operation ${hashKey(operation.id)} is ${operation.state}, and expiry says otherwise.`,
      );
    if (operation.state !== 'finalized' && operation.committed !== 0n)
      problems.push(`I4: operation ${hashKey(operation.id)} is ${operation.state}, and has committed.`);
    if (operation.refunded > operation.committed)
      problems.push(`I3: operation ${hashKey(operation.id)} gave back more than it committed.`);
    for (const field of operation.fields) {
      if (isPending) add(reserved, field, operation.amount);
      add(committed, field, operation.committed - operation.refunded);
    }
  }
  for (const [field, counter] of counters) {
    const held = reserved.get(field) ?? 0n;
    if (counter.reserved !== held)
      problems.push(
        `I2: reserved is ${counter.reserved}, the pending holds are ${held} (${hashKey(field)}).`,
      );
    const spent = (committed.get(field) ?? 0n) + counter.archived;
    if (counter.committed !== spent)
      problems.push(
        `I3: committed is ${counter.committed}, the operations are ${spent} (${hashKey(field)}).`,
      );
  }
  for (const [field, held] of reserved)
    if (held !== 0n && !counters.has(field))
      problems.push(`I2: pending holds of ${held} have no counter (${hashKey(field)}).`);
  return { ok: problems.length === 0, problems };
}

function add(sums: Map<string, bigint>, field: string, amount: bigint): void {
  sums.set(field, (sums.get(field) ?? 0n) + amount);
}
