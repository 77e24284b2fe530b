import type { BudgetSnapshot } from '../budget.verify.js';
import { idOf, isRenewed, parseDetail, parseRecord } from './budget.replies.js';

/** Parses everything that a root stores: lists of counters, records and pending ids, each after its length. */
export function parseSnapshot(reply: string[]): BudgetSnapshot {
  const take = (): string[] => reply.splice(0, Number(reply.shift()));
  const counters = inGroups(2, take()).filter(([field]) => field?.startsWith('c|'));
  const records = new Map(inGroups(2, take()) as [string, string][]);
  const operations = [...records].filter(([field]) => /^o\|/i.test(field));
  return {
    counters: new Map(counters.map(([field = '', packed = '']) => [field, parseCounter(packed)])),
    operations: operations.map(([field, packed]) =>
      toOperation(field, packed, records.get((isRenewed(field) ? 'D' : 'd') + field.slice(1)) ?? ''),
    ),
    pending: new Set(take().filter((member) => member !== '')),
  };
}

export function inGroups(size: number, list: readonly string[]): string[][] {
  const groups: string[][] = [];
  for (let i = 0; i < list.length; i += size) groups.push(list.slice(i, i + size));
  return groups;
}

function parseCounter(packed: string) {
  const [committed = 0n, reserved = 0n, , archived = 0n] = packed.split(' ', 4).map(BigInt);
  return { committed, reserved, archived };
}

function toOperation(field: string, packed: string, detail: string): BudgetSnapshot['operations'][number] {
  const id = idOf(field);
  const { state, amount, committed, refunded } = parseRecord(packed, detail, { root: '', id });
  const { fields } = parseDetail(detail);
  return { id, isRenewed: isRenewed(field), state, amount, committed, refunded, fields };
}
