import { MAX_AMOUNT } from '../budget.results.js';
import { changeCounters, READ_BALANCES, REFUSE_STALE, START } from './budget.fragments.js';
import * as lua from './budget.operation.fragments.js';
import { joined, recordOf } from './budget.record.js';

const SPENT = ['actualOf', 'committedOf', 'refundedOf', 'uncoveredOf', 'lateOf'] as const;

/**
 * budget-refund: Subtracts a refund from the committed amounts of an operation's windows.
 * KEYS: counters, records, pending, garbage, idKey, refundKey
 * ARGV: id, generation, nonce, amount, retentionMs
 * Reply: ['refunded' | 'replayed', record, limits, counters, 'max' where a sum had stopped at the largest amount and now
 *   stops at 0], ['exceeds_committed' | 'pending' | 'aborted' | 'expired', record], ['conflict'], ['not_found']
 * Atomic: refunds together never exceed what the operation has committed.
 */
export const refundScript = lua.defineBudgetScript({
  name: 'budget-refund',
  ids: ['idKey', 'refundKey'],
  args: [...lua.REF, 'amount', 'retentionMs'],
  lua: /* lua */ `local earlier = redis.call('GET', refundKey)
${START}
${lua.readOperation(...SPENT, 'expiresAtMs', 'endedAtMs', 'crossed', ...lua.ENTRY_PARTS)}
local content = table.concat({ 1, amount, generationOf, string.sub(idKey, -22) }, ' ')
if earlier and earlier ~= content then return { 'conflict' } end
if state == 'p' then return { 'pending', record } end
if state == 'a' then return { 'aborted', record } end
if state == 'x' then return { 'expired', record } end
${lua.OPEN_ENTRIES}
if earlier then return { 'replayed', record, ${lua.SUMS} } end
if committedOf - refundedOf - amount < 0 then return { 'exceeds_committed', record } end

local isAtMax
${changeCounters(`-- The counter of a window that is forgotten begins at 0.
  isAtMax = isAtMax or (committed ~= '0' and committed - amount < 0)
  committed = format('%d', math.max(committed - amount, 0))
  -- An operation whose record is purged counts in the sum of those.
  if kept then
    local archived, crossing = match(rest, '(%d+)( %S+)')
    rest = format(' %d', math.max(archived - amount, 0)) .. crossing
  end`)}
local head = ${joined('kind', 'generationOf', 'amountOf', 'actualOf', 'committedOf', "format('%d', refundedOf + amount)", 'uncoveredOf', 'lateOf')}
record = ${recordOf('endedAtMs', "'1 f'", 'head')}
local untilMs = nowMs + 2 * retentionMs
${lua.tryKeep('refundKey')}
${lua.writeCounters('')}
${lua.LAST_END}
if not kept then call('HSET', records, slot, record) end
-- The operation is known for as long as its refund, so that a repeated call finds both.
if slot == 'o|' .. id then call(${lua.keep('endedAtMs')}) end
call('SET', refundKey, content, 'PX', format('%d', ${lua.keepMs()}))
return { 'refunded', record, ${lua.SUMS}, isAtMax and 'max' or nil }`,
});

/**
 * budget-credit: Adds an amount to the limit of the open window.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: amount, retentionMs, ENTRIES (of one period)
 * Reply: ['credited' | 'replayed', fields, ends, limits, counters], ['conflict'], ['too_large']
 * Atomic: a credit is counted once by its id, also where a call is sent twice.
 */
export const creditScript = lua.defineBudgetScript({
  name: 'budget-credit',
  ids: ['idKey'],
  args: ['amount', 'retentionMs', ...lua.ENTRIES],
  lua: /* lua */ `local earlier = redis.call('GET', idKey)
${START}
local content = '1 ' .. amount .. ' ' .. match(fields, '^c|(.*)|%d+$')
if earlier and earlier ~= content then return { 'conflict' } end
${REFUSE_STALE}
${READ_BALANCES}
if earlier then return { 'replayed', ${lua.ENTRY_LISTS} } end
${changeCounters(`local base = inForce ~= 'u' and inForce or 0
  if tonumber(amount) > ${MAX_AMOUNT} - base - credits then return { 'too_large' } end
  credits = format('%d', credits + amount)`)}
local untilMs = ends ~= '0' and tonumber(ends) + 2 * retentionMs or nil
call('HLEN', records)
${lua.tryKeep('idKey')}
${lua.writeCounters('')}
call('SET', idKey, content, 'PX', format('%d', ${lua.keepMs()}))
return { 'credited', ${lua.ENTRY_LISTS} }`,
});

/**
 * budget-set-limit: Sets a limit that takes precedence over the configured one.
 * KEYS: counters, records, pending, garbage
 * ARGV: scope, period, field (its counter), limit ('-' clears it)
 * Reply: ['set' | 'cleared' | 'too_large']
 * Atomic: the limits of a scope are one value, in which two calls may change two periods.
 */
export const setLimitScript = lua.defineBudgetScript({
  name: 'budget-set-limit',
  args: ['scope', 'period', 'field', 'limit'],
  lua: /* lua */ `local packed, text = unpack(redis.call('HMGET', counters, field, 'l|' .. scope))
local credits = string.match(packed or '', '^1 %d+ %d+ (%d+)') or 0
if limit ~= '-' and limit ~= 'u' and tonumber(limit) > ${MAX_AMOUNT} - credits then return { 'too_large' } end
local limits, list = {}, {}
for each, value in string.gmatch(text or '', '([^ =]+)=([^ =]+)') do limits[each] = value end
limits[period] = limit ~= '-' and limit or nil
for each, value in pairs(limits) do list[#list + 1] = each .. '=' .. value end
table.sort(list)

if #list == 0 then
  redis.call('HDEL', counters, 'l|' .. scope)
else
  -- A limit of setLimit lasts until it is cleared, so the keys of the root never end.
  local ending = redis.call('HGET', counters, '~')
  if ending and not string.find(ending, 'never', 1, true) then
    redis.call('HSET', counters, '~', ending)
    for _, key in ipairs({ counters, records, pending, garbage }) do redis.call('PERSIST', key) end
  end
  redis.call('HSET', counters, 'l|' .. scope, table.concat(list, ' '), '~', 'never l')
end
return { limit == '-' and 'cleared' or 'set' }`,
});
