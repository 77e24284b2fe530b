import type { Amount, Quarantined } from '../budget.types.js';
import type { BudgetSnapshot } from '../budget.verify.js';
import { unreadableValue } from '../../redis/redis.errors.js';
import { StoredRecord } from './budget.record.js';
import { idOf, isRenewed, parseRecord, readable } from './budget.replies.js';

/** Parses everything that a root stores: lists of counters, records and pending ids, each after its length. */
export function parseSnapshot(reply: string[]): BudgetSnapshot {
  const take = (): string[] => reply.splice(0, Number(reply.shift()));
  const counters = new Map<string, ReturnType<typeof parseCounter>>();
  const operations: BudgetSnapshot['operations'][number][] = [];
  const quarantined: Quarantined[] = [];
  for (const [field = '', packed = ''] of inGroups(2, take())) {
    if (!field.startsWith('c|')) continue;
    const counter = readable(() => parseCounter(packed));
    if (counter) counters.set(field, counter);
    else quarantined.push({ field, reserved: null });
  }
  for (const [field = '', packed = ''] of inGroups(2, take())) {
    const operation = /^o\|/i.test(field) && readable(() => toOperation(field, packed));
    if (operation) operations.push(operation);
    else if (/^[oq]\|/i.test(field))
      quarantined.push({ field: field.replace(/^q\|/, ''), reserved: reservedIn(packed) });
  }
  return { counters, operations, pending: new Set(take().filter((member) => member !== '')), quarantined };
}

/** Returns what a record had reserved if its first words can be read. */
function reservedIn(packed: string): Amount | null {
  const reserved = /^1 p \w \d+ (\d+) /.exec(packed)?.[1];
  return reserved === undefined ? null : Number(reserved);
}

export function inGroups(size: number, list: readonly string[]): string[][] {
  const groups: string[][] = [];
  for (let i = 0; i < list.length; i += size) groups.push(list.slice(i, i + size));
  return groups;
}

function parseCounter(packed: string) {
  if (!/^1( \d+){5}(=\w*(\+\d+)?)?$/.test(packed)) throw unreadableValue(packed);
  const [, committed = 0, reserved = 0, , archived = 0] = packed.split(' ', 5).map(Number);
  return { committed, reserved, archived };
}

function toOperation(field: string, packed: string): BudgetSnapshot['operations'][number] {
  const id = idOf(field);
  const { state, amount, committed, refunded } = parseRecord(packed, { root: '', id });
  const fields = new StoredRecord(packed).text('fieldsOf').split(';');
  return { id, isRenewed: isRenewed(field), state, amount, committed, refunded, fields };
}
