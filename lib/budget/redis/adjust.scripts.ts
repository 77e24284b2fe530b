import { ARM, ARM_CREDITED } from './budget.thresholds.fragments.js';
import { READ_COUNTERS, START, admit, unreadable } from './budget.fragments.js';
import {
  ENTRIES,
  ENTRY_LISTS,
  OPEN_DETAIL,
  READ_OPERATION,
  REF,
  defineBudgetScript,
  writeCounters,
} from './budget.operation.fragments.js';

/**
 * budget-refund: Subtracts a refund from the committed amounts of an operation's windows.
 * KEYS: counters, records, pending, garbage
 * ARGV: id, generation, nonce, amount, refundId, retentionMs
 * Reply: ['refunded' | 'replayed', record, fields, ends, limits, counters], ['exceeds_committed' | 'pending' |
 *   'aborted' | 'expired', record, detail], ['conflict'], ['not_found']
 * Atomic: refunds together never exceed what the operation has committed.
 */
export const refundScript = defineBudgetScript({
  name: 'budget-refund',
  args: [...REF, 'amount', 'refundId', 'retentionMs'],
  lua: /* lua */ `${START}
${READ_OPERATION}
local beginning, state, generationOf, committedOf, refundedOf, following =
  match(record, '^(1 (%a) %a (%d+) %d+ %d+ (%d+)) (%d+)( %d+ %d %d+ %d+ %d+ %S+)$')
if not state then ${unreadable('record')} end
local content = amount .. ' ' .. generationOf .. ' ' .. id
local earlier = redis.call('HGET', records, 'r|' .. refundId)
if earlier and earlier ~= content then return { 'conflict' } end
if state == 'p' then return { 'pending', record, detail } end
if state == 'a' then return { 'aborted', record, detail } end
if state == 'x' then return { 'expired', record, detail } end
${OPEN_DETAIL}
${READ_COUNTERS}
if earlier then return { 'replayed', record, ${ENTRY_LISTS} } end
if less(minus(committedOf, refundedOf), amount) then return { 'exceeds_committed', record, detail } end

${ARM}
for i = 1, #limitOf do
  local committed, rest = match(packed[i], '^1 (%d+) (%d+ %d+ %d+ %S+)$')
  if not committed then ${unreadable('packed[i]')} end
  packed[i] = '1 ' .. minus(committed, amount) .. ' ' .. rest
end
record = beginning .. ' ' .. plus(refundedOf, amount) .. following
local untilMs = nowMs + 2 * retentionMs
${writeCounters("redis.call('ZADD', garbage, nowMs + retentionMs, 'r|' .. refundId)")}
redis.call('HSET', records, slot, record, 'r|' .. refundId, content)
return { 'refunded', record, ${ENTRY_LISTS} }`,
});

/**
 * budget-credit: Adds an amount to the limit of the open window.
 * KEYS: counters, records, pending, garbage
 * ARGV: id, amount, period, retentionMs, ENTRIES
 * Reply: ['credited' | 'replayed', fields, ends, limits, counters], ['conflict'], ['no_limit', scope]
 * Atomic: a credit is counted once by its id, also where a call is sent twice.
 */
export const creditScript = defineBudgetScript({
  name: 'budget-credit',
  args: ['id', 'amount', 'period', 'retentionMs', ...ENTRIES],
  lua: /* lua */ `${START}
local content = amount .. ' ' .. scopes .. '|' .. period
local earlier = redis.call('HGET', records, 'k|' .. id)
if earlier and earlier ~= content then return { 'conflict' } end
${admit('limits', 'thresholds')}
local at
for i, field in ipairs(split(fields)) do
  if match(field, '^c|[^|]+|([^|]+)|') == period then at = i - 1 end
end
if not at then return { 'no_limit', scopes } end
fields, ends, limits, names = '~;' .. names[at], split(ends)[at], split(limits)[at], { names[at] }
limitOf, setOf, packed = { limitOf[at] }, setOf and { setOf[at] }, { packed[at] }
thresholds = thresholds ~= '-' and split(thresholds)[at] or '-'
if earlier then return { 'replayed', ${ENTRY_LISTS} } end
${ARM}
local used, credited, rest = match(packed[1], '^(1 %d+ %d+) (%d+) (%d+ %S+)$')
if not used then ${unreadable('packed[1]')} end
packed[1] = used .. ' ' .. plus(credited, amount) .. ' ' .. rest
${ARM_CREDITED}
local untilMs = ends ~= '0' and tonumber(ends) + 2 * retentionMs or nil
${writeCounters("redis.call('ZADD', garbage, nowMs + retentionMs, 'k|' .. id)")}
redis.call('HSET', records, 'k|' .. id, content)
return { 'credited', ${ENTRY_LISTS} }`,
});

/**
 * budget-set-limit: Sets a limit that takes precedence over the configured one.
 * KEYS: counters, records, pending, garbage
 * ARGV: scope, period, limit ('-' clears it)
 * Reply: ['set' | 'cleared' | 'too_many']
 * Atomic: the limits of a scope are one value, in which two calls may change two periods.
 */
export const setLimitScript = defineBudgetScript({
  name: 'budget-set-limit',
  args: ['scope', 'period', 'limit'],
  lua: /* lua */ `local MAX_PERIODS = 16
local field = 'l|' .. scope
local limits = {}
local text = redis.call('HGET', counters, field) or ''
for each, value in string.gmatch(text, '([^ =]+)=([^ =]+)') do limits[each] = value end
limits[period] = limit ~= '-' and limit or nil
local list = {}
for each, value in pairs(limits) do list[#list + 1] = each .. '=' .. value end
if #list > MAX_PERIODS then return { 'too_many' } end
table.sort(list)

if #list == 0 then
  redis.call('HDEL', counters, field)
else
  -- A limit of setLimit lasts until it is cleared, so the keys of the root never end.
  local ending = redis.call('HGET', counters, '~')
  if ending and not string.find(ending, 'never', 1, true) then
    redis.call('HSET', counters, '~', ending)
    for _, key in ipairs({ counters, records, pending, garbage }) do redis.call('PERSIST', key) end
  end
  redis.call('HSET', counters, field, table.concat(list, ' '), '~', 'never l')
end
return { limit == '-' and 'cleared' or 'set' }`,
});
