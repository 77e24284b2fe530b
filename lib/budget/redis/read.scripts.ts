import { READ_BALANCES, REFUSE_STALE, START_SETTLING } from './budget.fragments.js';
import * as lua from './budget.operation.fragments.js';
import { readRecord } from './budget.record.js';
import { NOW_MS } from '../../script/fragments.js';

/**
 * budget-balance: Reads the balances of a scope's open windows.
 * KEYS: counters, records, pending, garbage
 * ARGV: retentionMs, ENTRIES
 * Reply: ['balance', fields, ends, limits, counters]
 * Atomic: holds that have expired are settled in the same step.
 */
export const balanceScript = lua.defineBudgetScript({
  name: 'budget-balance',
  args: ['retentionMs', ...lua.ENTRIES],
  lua: /* lua */ `${START_SETTLING}
${REFUSE_STALE}
${READ_BALANCES}
return { 'balance', ${lua.ENTRY_LISTS} }`,
});

/**
 * budget-get: Reads one operation.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, generation, nonce
 * Reply: ['found', record, now], ['not_found']
 * Atomic: the record and the time by which its caller judges it belong together.
 */
export const getScript = lua.defineBudgetScript({
  name: 'budget-get',
  ids: ['idKey'],
  args: lua.REF,
  lua: /* lua */ `local call = redis.call
${lua.FIND_OPERATION}
${readRecord('nonceOf')}${lua.REFUSE_FOREIGN}${NOW_MS}
return { 'found', record, string.format('%d', nowMs) }`,
});

/**
 * budget-page: Reads a page of the operations or of the counters that a root has.
 * KEYS: counters, records, pending, garbage
 * ARGV: pattern (of operations, or 'c|*' of counters), cursor, limit
 * Reply: ['page', next cursor, now, field, value, field, value...]
 * Atomic: what is read comes with the time by which its caller judges it.
 */
export const pageScript = lua.defineBudgetScript({
  name: 'budget-page',
  args: ['pattern', 'cursor', 'limit'],
  lua: /* lua */ `${NOW_MS}
local key = pattern == 'c|*' and counters or records
local page = redis.call('HSCAN', key, cursor, 'MATCH', pattern, 'COUNT', limit)
local reply = { 'page', page[1], string.format('%d', nowMs) }
for _, each in ipairs(page[2]) do reply[#reply + 1] = each end
return reply`,
});

/**
 * budget-snapshot: Reads all of a root.
 * KEYS: counters, records, pending, garbage
 * ARGV: none
 * Reply: ['snapshot', number of parts, counter field, value..., number of parts, record field, value..., number
 *   of ids, pending id...]
 * Atomic: sums and the operations that they add up are of one instant.
 */
export const snapshotScript = lua.defineBudgetScript({
  name: 'budget-snapshot',
  args: [],
  lua: /* lua */ `local reply = { 'snapshot' }
local function append(list)
  reply[#reply + 1] = string.format('%d', #list)
  for _, each in ipairs(list) do reply[#reply + 1] = each end
end
append(redis.call('HGETALL', counters))
append(redis.call('HGETALL', records))
append(redis.call('ZRANGE', pending, 0, -1))
return reply`,
});
