import { openRecord, READ_BALANCES, REFUSE_STALE, START } from './budget.fragments.js';
import * as lua from './budget.operation.fragments.js';
import { joined } from './budget.record.js';

// A pending hold is answered again, in mode 'run' only to the call that created it, which has the same nonce. Except in
// mode 'reserve', an id whose hold ended without spending gets a hold of the next generation.

/**
 * budget-reserve: Reserves an amount in all entries, or in none.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, amount, ttlMs, meta, mode, nonce, retentionMs, ENTRIES
 * Reply: ['reserved' | 'replayed', record, limits, counters], ['exceeded', amount, now, fields, ends, limits, counters],
 *   ['pending', record, now], ['conflict' | 'already_finalized' | 'already_aborted' | 'already_expired', record],
 *   ['too_large']
 * Atomic: between the look at what is left and the reservation, no other call may take it.
 */
export const reserveScript = lua.defineBudgetScript({
  name: 'budget-reserve',
  ids: ['idKey'],
  args: ['id', 'amount', 'ttlMs', 'meta', 'mode', 'nonce', 'retentionMs', ...lua.ENTRIES],
  lua: /* lua */ `-- Nothing was kept under an id that was made for this call.
local kept = nonce ~= '-' and redis.call('GET', idKey)
${START}
${lua.READ_NEWEST}
local generation, before, replayed = '1', nil, nil
if record then
  ${openRecord('state', 'kind', 'generationOf', 'amountOf', 'nonceOf', 'fieldsOf', 'limitsOf', 'endsOf', 'inheritedOf')}
  local isOurs = nonce ~= '-' and nonceOf == nonce
  if state == 'f' then return { 'already_finalized', record } end
  if state == 'p' then
    if mode == 'run' and not isOurs then return { 'pending', record, now } end
    ${lua.sameContent('h')}
    if not isSame then return { 'conflict', record } end
    replayed = record
    fields, limits, ends, inherited = fieldsOf, limitsOf, endsOf, inheritedOf
  else
    if mode == 'reserve' or isOurs then return { state == 'a' and 'already_aborted' or 'already_expired', record } end
    generation = format('%d', generationOf + 1)
    before = { name = generationOf .. '|' .. id, record = record,
      untilMs = call('ZSCORE', garbage, 'o|' .. id) or now }
  end
end
if not replayed then
  ${REFUSE_STALE}
end
${READ_BALANCES}
if replayed then return { 'replayed', replayed, ${lua.SUMS} } end
${lua.addAmount('reserved')}
local expiresAtMs = nowMs + ttlMs
local untilMs = lastEndMs ~= '0' and math.max(tonumber(lastEndMs), expiresAtMs) + 2 * retentionMs or nil
expiresAtMs = format('%d', expiresAtMs)
record = ${joined("'1 p h'", 'generation', 'amount', "'0 0 0 0 0'", 'now', 'expiresAtMs', "'0'", 'crossed', lua.FIXED_NOW)}
${lua.writeCounters(`
if before then
  call('ZADD', garbage, before.untilMs, 'O|' .. before.name)
  call('HSET', records, 'O|' .. before.name, before.record)
  call('ZREM', garbage, 'o|' .. id)
  if call('ZREM', garbage, 'n|' .. id) == 1 then call('ZADD', garbage, 0, 'N|' .. before.name) end
end
call('ZADD', pending, expiresAtMs, id)`)}
call('HSET', records, 'o|' .. id, record)
return { 'reserved', record, ${lua.SUMS} }`,
});
