import { LIFETIME_IDS_MS, MAX_AMOUNT } from '../budget.results.js';
import { isRenewed } from './budget.memory-operation.js';
import type { Entry, Operation, Tree } from './budget.memory-tree.js';

// What the passing of time does to a root.

/** Settles the holds that have expired, and forgets ids. */
export function expireDue(tree: Tree): void {
  const { kept, pending, nowMs } = tree;
  while (kept.take(nowMs) !== undefined);
  for (let id = pending.take(nowMs); id !== undefined; id = pending.take(nowMs)) {
    const operation = tree.operations.get(`o|${id}`) as Operation;
    const { record, entries } = operation;
    record.state = 'expired';
    tree.unreported.push(id);
    tree.count(entries, (counter) => (counter.reserved -= record.amount), record.expiresAtMs);
    end(tree, operation, record.expiresAtMs);
  }
}

/** Marks an operation as ended, and schedules it for purging. */
export function end(tree: Tree, operation: Operation, atMs = tree.nowMs): void {
  const { name, record } = operation;
  record.endedAtMs = atMs;
  tree.garbage.set(name, atMs + tree.retentionMs);
  if (!isRenewed(operation)) tree.pending.delete(record.id);
}

/**
 * Returns until when an id of these windows is kept: to their end and its retention, in a lifetime 400 days, but at most for
 * `idTtlMs`, once that is longer than the retention.
 */
export function keptUntilMs(
  { nowMs, retentionMs }: Tree,
  entries: readonly Entry[],
  idTtlMs = Infinity,
): number {
  const ends = entries.map(({ window: { endMs } }) =>
    endMs === null ? nowMs + LIFETIME_IDS_MS : endMs + retentionMs,
  );
  return Math.max(nowMs + retentionMs, Math.min(Math.max(...ends), nowMs + idTtlMs));
}

/** Keeps a finalized operation, unless a newer one has its id. */
export function keepOperation(tree: Tree, operation: Operation, idTtlMs?: number): void {
  const { name, entries } = operation;
  if (!isRenewed(operation)) tree.kept.set(name, keptUntilMs(tree, entries, idTtlMs), operation);
}

/** Renames an operation, so that the next generation can take its id. */
export function makeRoomForNext(tree: Tree, operation: Operation): void {
  const { name, record } = operation;
  operation.name = `O|${record.generation}|${record.id}`;
  tree.operations.delete(name);
  tree.operations.set(operation.name, operation);
  tree.garbage.set(operation.name, tree.garbage.at(name) as number);
  tree.garbage.delete(name);
}

/** Purges at most `max` records and counters. Returns how many were purged: one may still be needed. */
export function purgeDue(tree: Tree, max: number): number {
  let purged = 0;
  for (let left = max; left > 0; left--) {
    const name = tree.garbage.take(tree.nowMs);
    if (name === undefined) break;
    if (purge(tree, name)) purged++;
  }
  return purged;
}

/** Purges one record or counter. Returns false if it is still needed. */
function purge(tree: Tree, name: string): boolean {
  const rest = name.slice(2);
  if (!name.startsWith('c|')) return purgeOperation(tree, name);
  if (!tree.counters.get(rest)?.reserved) return tree.counters.delete(rest);
  tree.garbage.set(name, tree.nowMs + tree.retentionMs);
  return false;
}

function purgeOperation(tree: Tree, name: string): boolean {
  const operation = tree.operations.get(name) as Operation;
  const { record, entries } = operation;
  // The newest operation of an id is kept as long as any older one. Otherwise the next hold of the id would have
  // generation 1 again, while older generations are still stored.
  for (let older = isRenewed(operation) ? 0 : record.generation - 1; older > 0; older--) {
    const olderUntilMs = tree.garbage.at(`O|${older}|${record.id}`);
    if (olderUntilMs === undefined) continue;
    tree.garbage.set(name, olderUntilMs);
    for (const { field } of entries) {
      const untilMs = tree.garbage.at(`c|${field}`);
      if (untilMs !== undefined && untilMs <= olderUntilMs) tree.garbage.set(`c|${field}`, olderUntilMs + 1);
    }
    return false;
  }
  // The counters keep the committed sum of a purged operation, so that verify still adds up.
  for (const { field } of entries) {
    const counter = tree.counters.get(field);
    if (counter)
      counter.archived = Math.min(counter.archived + record.committed - record.refunded, MAX_AMOUNT);
  }
  const { endedAtMs } = record;
  if (endedAtMs !== null) Object.assign(record, { createdAtMs: endedAtMs, expiresAtMs: endedAtMs });
  record.meta = undefined;
  Object.assign(operation, { isPurged: true, crossed: [] });
  return tree.operations.delete(name);
}

/** Returns in how many ms there is more to settle, report or purge. Null if not before the next operation. */
export function nextDueMs({ unreported, pending, garbage, kept, nowMs }: Tree): number | null {
  if (unreported.length > 0) return 0;
  const nextMs = Math.min(pending.nextMs(), garbage.nextMs(), kept.nextMs());
  return nextMs === Infinity ? null : Math.max(0, nextMs - nowMs);
}

export const isEmpty = ({ counters, limits, operations, kept, garbage, unreported }: Tree): boolean =>
  counters.size + limits.size + operations.size + kept.size + garbage.size + unreported.length === 0;
