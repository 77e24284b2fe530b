import { MAX_AMOUNT } from '../budget.results.js';
import { changeCounters, covered, START_SETTLING } from './budget.fragments.js';
import * as lua from './budget.operation.fragments.js';
import { joined, recordOf } from './budget.record.js';

/**
 * budget-finalize: Commits what was really spent, and ends the hold.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, generation, nonce, actual, overage, late, idTtlMs, retentionMs
 * Reply: ['finalized' | 'replayed', record, limits, counters, 'max' where a sum stopped at the largest amount],
 *   ['overage_rejected' | 'conflict' | 'aborted' | 'expired', record], ['not_found']
 * Atomic: a hold ends once, and no sum counts its amount twice or not at all.
 */
export const finalizeScript = lua.defineBudgetScript({
  name: 'budget-finalize',
  ids: ['idKey'],
  args: [...lua.REF, 'actual', 'overage', 'late', 'idTtlMs', 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
${lua.readOperation('actualOf', 'expiresAtMs', 'thresholdsOf', ...lua.ENTRY_PARTS)}
if state == 'a' then return { 'aborted', record } end
if state == 'f' and actualOf ~= actual then return { 'conflict', record } end
${lua.OPEN_ENTRIES}
if state == 'f' then return { 'replayed', record, ${lua.SUMS} } end

local isLate, held, spent = state == 'x', tonumber(amountOf), tonumber(actual)
local inHold = isLate and 0 or held
local booked, uncovered = spent, 0
if spent > inHold then
  local beyond = spent - inHold
  ${covered('beyond')}
  if isLate and (late == 'reject' or (late == 'if-available' and covered < beyond)) then
    return { 'expired', record }
  end
  if spent > held then
    if overage == 'reject' then return { 'overage_rejected', record } end
    -- The part up to the hold is always committed, also after the hold has expired.
    if overage == 'cap' then booked = math.max(inHold + covered, held) end
  end
  uncovered = beyond - covered
elseif isLate and late == 'reject' then
  return { 'expired', record }
end

local isAtMax
${changeCounters(`reserved = format('%d', math.max(reserved - inHold, 0))
  local sum = committed + booked
  -- What is spent is never refused, so the sum stops at the largest amount.
  if sum > ${MAX_AMOUNT} then sum, isAtMax = ${MAX_AMOUNT}, true end
  committed = format('%d', sum)`)}
local crossed = '-'
-- Spending no more than the hold reserved reaches no threshold.
if inHold < booked then
  local thresholds = thresholdsOf
${lua.findCrossed('(booked - inHold)')}
end
local head = ${joined('kind', 'generationOf', 'amountOf', 'actual')}
  .. format(' %d 0 %d ', booked, uncovered) .. (isLate and '1' or '0')
record = ${recordOf('now', "'1 f'", 'head')}
${lua.endOperation(`if slot == 'o|' .. id then
  ${lua.LAST_END}
  local keeping = redis.pcall(${lua.keep('now', 'idTtlMs')})
  if keeping.err then return keeping end
end`)}
return { 'finalized', record, ${lua.SUMS}, isAtMax and 'max' or nil }`,
});
