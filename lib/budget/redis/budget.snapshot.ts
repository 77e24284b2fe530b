import type { Amount, Quarantined } from '../budget.types.js';
import type { BudgetSnapshot } from '../budget.verify.js';
import { unreadableValue } from '../../redis/redis.errors.js';
import { StoredRecord } from './budget.record.js';
import { idOf, isRenewed, parseRecord, readable } from './budget.replies.js';

/** Parses everything that a root stores: lists of counters, records and pending ids, each after its length. */
export function parseSnapshot(reply: string[]): BudgetSnapshot {
  const take = (): string[] => reply.splice(0, Number(reply.shift()));
  const counters = inGroups(2, take()).filter(([field]) => field?.startsWith('c|'));
  const records = inGroups(2, take()) as [string, string][];
  const quarantined: Quarantined[] = [];
  const unlessUnread = <T>(field: string, packed: string, parse: () => T): T[] => {
    const parsed = readable(parse);
    if (parsed === undefined) quarantined.push({ field, reserved: reservedIn(packed) });
    return parsed === undefined ? [] : [parsed];
  };
  for (const [field, packed] of records)
    if (field.startsWith('q|')) quarantined.push({ field: field.slice(2), reserved: reservedIn(packed) });
  return {
    counters: new Map(
      counters.flatMap(([field = '', packed = '']) =>
        unlessUnread(field, '', () => [field, parseCounter(packed)] as const),
      ),
    ),
    operations: records
      .filter(([field]) => /^o\|/i.test(field))
      .flatMap(([field, packed]) => unlessUnread(field, packed, () => toOperation(field, packed))),
    pending: new Set(take().filter((member) => member !== '')),
    quarantined,
  };
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
