import { COUNTER, isNewer, START_SETTLING } from './budget.fragments.js';
import { defineBudgetScript } from './budget.operation.fragments.js';
import { readRecord } from './budget.record.js';

/**
 * budget-repair: Lets go of records that cannot be read, and adds up anew what is reserved.
 * KEYS: counters, records, pending, garbage
 * ARGV: retentionMs
 * Reply: ['repaired']
 * Atomic: the sums are those of the pending holds of one instant.
 */
export const repairScript = defineBudgetScript({
  name: 'budget-repair',
  args: ['retentionMs'],
  lua: /* lua */ `${START_SETTLING}
call('ZCARD', garbage)
local function all(key)
  local values, list = {}, call('HGETALL', key)
  for i = 1, #list, 2 do values[list[i]] = list[i + 1] end
  return values
end
local stored, sums, gone = all(records), all(counters), {}
local reserved, committed = {}, {}
for member, record in pairs(stored) do
  local kind = string.sub(member, 1, 2)
  if kind == 'o|' or kind == 'O|' then
    ${readRecord('state', 'amountOf', 'committedOf', 'refundedOf', 'fieldsOf')}
    if ${isNewer('record')} then error('SYNCGUARD_NEWER', 0) end
    if not state then
      gone[#gone + 1] = member
    else
      for field in gmatch(fieldsOf, '[^;]+') do
        if state == 'p' then reserved[field] = (reserved[field] or 0) + amountOf end
        committed[field] = (committed[field] or 0) + committedOf - refundedOf
      end
    end
  elseif kind == 'q|' then
    gone[#gone + 1] = member
  end
end
for _, packed in pairs(sums) do
  if ${isNewer('packed')} then error('SYNCGUARD_NEWER', 0) end
end

for field, packed in pairs(sums) do
  if string.sub(field, 1, 2) == 'c|' then
    local spent, _, credits, archived, crossed = match(packed, ${COUNTER})
    if not spent then spent, credits, archived, crossed = committed[field] or 0, 0, 0, 0 end
    call('HSET', counters, field,
      format('1 %d %d %s %s %s', spent, reserved[field] or 0, credits, archived, crossed))
  end
end
for _, member in ipairs(gone) do
  call('HDEL', records, member)
  call('ZREM', garbage, member)
  if string.sub(member, 1, 2) == 'o|' then call('ZREM', pending, string.sub(member, 3)) end
end
return { 'repaired' }`,
});
