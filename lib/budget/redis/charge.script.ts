import { ROOM, START, admit, openRecord } from './budget.fragments.js';
import {
  DETAIL,
  ENTRIES,
  ENTRY_LISTS,
  READ_NEWEST,
  REPLAY,
  addAmount,
  defineBudgetScript,
  sameContent,
  writeCounters,
} from './budget.operation.fragments.js';

/**
 * budget-charge: Commits an amount in one step.
 * KEYS: counters, records, pending, garbage
 * ARGV: id, amount, mode ('record': also beyond the limit), retentionMs, ENTRIES
 * Reply: ['charged' | 'replayed', record, fields, ends, limits, counters], ['exceeded', amount, now, fields,
 *   ends, limits, counters], ['conflict', record, detail]
 * Atomic: between the look at what is left and the commitment, no other call may take it.
 */
export const chargeScript = defineBudgetScript({
  name: 'budget-charge',
  args: ['id', 'amount', 'mode', 'retentionMs', ...ENTRIES],
  lua: /* lua */ `${START}
${READ_NEWEST}
if record then
  ${openRecord('kind', 'amountOf')}
  ${sameContent('c')}
  if not isSame then return { 'conflict', record, detail } end
  ${REPLAY}
end
${admit('limits', 'inherited', 'thresholds')}
local uncovered = '0'
if mode == 'record' then
  ${ROOM}
  for i = 1, #limitOf do
    local room = roomOf(i)
    local missing = room and minus(amount, room) or '0'
    if less(uncovered, missing) then uncovered = missing end
  end
end

${addAmount('committed', "amount ~= '0' and mode ~= 'record'")}
local meta, nonce = '', '-'
local untilMs = lastEndMs ~= '0' and tonumber(lastEndMs) + 2 * retentionMs or nil
record = table.concat({ '1 f c', 1, amount, amount, amount, 0, uncovered, 0, now, now, now, crossed }, ' ')
detail = ${DETAIL}
${writeCounters("redis.call('ZADD', garbage, nowMs + retentionMs, 'o|' .. id)")}
redis.call('HSET', records, 'o|' .. id, record, 'd|' .. id, detail)
return { 'charged', record, ${ENTRY_LISTS} }`,
});
