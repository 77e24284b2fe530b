import { covered, openRecord, READ_BALANCES, REFUSE_STALE, START } from './budget.fragments.js';
import * as lua from './budget.operation.fragments.js';
import { joined } from './budget.record.js';

/**
 * budget-charge: Commits an amount in one step.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, amount, mode ('record': also beyond the limit), idTtlMs, retentionMs, ENTRIES
 * Reply: ['charged' | 'replayed', record, limits, counters, 'max' where a sum stopped at the largest amount], ['exceeded',
 *   amount, now, fields, ends, limits, counters], ['conflict', record], ['too_large']
 * Atomic: between the look at what is left and the commitment, no other call may take it.
 */
export const chargeScript = lua.defineBudgetScript({
  name: 'budget-charge',
  ids: ['idKey'],
  args: ['id', 'amount', 'mode', 'idTtlMs', 'retentionMs', ...lua.ENTRIES],
  lua: /* lua */ `local kept = redis.call('GET', idKey)
${START}
${lua.READ_NEWEST}
if record then
  ${openRecord('kind', 'amountOf', 'fieldsOf', 'limitsOf', 'endsOf', 'inheritedOf')}
  ${lua.sameContent('c')}
  if not isSame then return { 'conflict', record } end
  fields, limits, ends, inherited = fieldsOf, limitsOf, endsOf, inheritedOf
else
  ${REFUSE_STALE}
end
${READ_BALANCES}
if record then return { 'replayed', record, ${lua.SUMS} } end
local uncovered = 0
if mode == 'record' then
  ${covered('tonumber(amount)')}
  uncovered = amount - covered
end

${lua.addAmount('committed')}
local meta, nonce = '', '-'
local untilMs = lastEndMs ~= '0' and tonumber(lastEndMs) + 2 * retentionMs or nil
local head = 'c 1 ' .. ${joined('amount', 'amount', 'amount')} .. format(' 0 %d 0', uncovered)
record = ${joined("'1 f'", 'head', 'now', 'now', 'now', 'crossed', lua.FIXED_NOW)}
${lua.writeCounters("call('ZADD', garbage, format('%d', nowMs + retentionMs), 'o|' .. id)")}
local keeping = redis.pcall(${lua.keep('now', 'idTtlMs')})
if keeping.err then
  -- Nobody would find what was counted.
  for i = 1, #names do writes[2 * i] = found[i + 1] or EMPTY end
  call('HSET', counters, unpack(writes))
  return keeping
end
call('HSET', records, 'o|' .. id, record)
return { 'charged', record, ${lua.SUMS}, isAtMax and 'max' or nil }`,
});
