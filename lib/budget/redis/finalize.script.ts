import { ARM, CROSS } from './budget.thresholds.fragments.js';
import { READ_COUNTERS, ROOM, START_SETTLING, openRecord, unreadable } from './budget.fragments.js';
import {
  END_OPERATION,
  ENTRY_LISTS,
  OPEN_DETAIL,
  READ_OPERATION,
  REF,
  defineBudgetScript,
} from './budget.operation.fragments.js';

/**
 * budget-finalize: Commits what was really spent, and ends the hold.
 * KEYS: counters, records, pending, garbage
 * ARGV: id, generation, nonce, actual, overage, late, retentionMs
 * Reply: ['finalized' | 'replayed', record, fields, ends, limits, counters], ['overage_rejected' | 'conflict' |
 *   'aborted' | 'expired', record, detail], ['not_found']
 * Atomic: a hold ends once, and no sum counts its amount twice or not at all.
 */
export const finalizeScript = defineBudgetScript({
  name: 'budget-finalize',
  args: [...REF, 'actual', 'overage', 'late', 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
${READ_OPERATION}
${openRecord('state', 'kind', 'generationOf', 'amountOf', 'actualOf', 'createdAtMs', 'expiresAtMs')}
if state == 'a' then return { 'aborted', record, detail } end
if state == 'f' and actualOf ~= actual then return { 'conflict', record, detail } end
${OPEN_DETAIL}
${READ_COUNTERS}
if state == 'f' then return { 'replayed', record, ${ENTRY_LISTS} } end

local isLate = state == 'x'
local inHold = isLate and '0' or amountOf
local booked, uncovered = actual, '0'
if less(inHold, actual) then
  ${ROOM}
  local beyond = minus(actual, inHold)
  local covered = beyond
  for i = 1, #limitOf do
    local room = roomOf(i)
    if room and less(room, covered) then covered = room end
  end
  if isLate and (late == 'reject' or (late == 'if-available' and covered ~= beyond)) then
    return { 'expired', record, detail }
  end
  if less(amountOf, actual) then
    if overage == 'reject' then return { 'overage_rejected', record, detail } end
    if overage == 'cap' then
      booked = plus(inHold, covered)
      -- The part up to the hold is always committed, also after the hold has expired.
      if less(booked, amountOf) then booked = amountOf end
    end
  end
  uncovered = minus(beyond, covered)
elseif isLate and late == 'reject' then
  return { 'expired', record, detail }
end

${ARM}
for i = 1, #limitOf do
  local spent, reserved, rest = match(packed[i], '^1 (%d+) (%d+) (%d+ %d+ %S+)$')
  if not spent then ${unreadable('packed[i]')} end
  packed[i] = '1 ' .. plus(spent, booked) .. ' ' .. minus(reserved, inHold) .. ' ' .. rest
end
local crossed = '-'
-- Spending no more than the hold reserved reaches no threshold.
if less(inHold, booked) then
${CROSS}
end
record = table.concat({ '1 f', kind, generationOf, amountOf, actual, booked, 0, uncovered, isLate and 1 or 0,
  createdAtMs, expiresAtMs, now, crossed }, ' ')
${END_OPERATION}
return { 'finalized', record, ${ENTRY_LISTS} }`,
});
