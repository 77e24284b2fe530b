import { changeCounters, READ_COUNTERS, START_SETTLING, TRY_ZREM } from './budget.fragments.js';
import * as lua from './budget.operation.fragments.js';
import { recordOf } from './budget.record.js';

/**
 * budget-abort: Ends a hold without spending.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, generation, nonce, retentionMs
 * Reply: ['aborted' | 'replayed' | 'finalized' | 'expired' (of an older generation), record], ['not_found']
 * Atomic: a hold ends once, and its amount goes back in the same step.
 */
export const abortScript = lua.defineBudgetScript({
  name: 'budget-abort',
  ids: ['idKey'],
  args: [...lua.REF, 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
${lua.readOperation('expiresAtMs', 'crossed', 'openUntilOf', 'fieldsOf', 'endsOf')}
if state == 'f' then return { 'finalized', record } end
if state == 'a' then return { 'replayed', record } end
if slot ~= 'o|' .. id then return { 'expired', record } end
local openUntilMs, fields, ends = openUntilOf, fieldsOf, endsOf
${READ_COUNTERS}
local inHold = state == 'p' and amountOf or 0
${changeCounters("reserved = format('%d', math.max(reserved - inHold, 0))")}
local lateOf = state == 'x' and '1' or '0'
record = ${recordOf('now', "'1 a'", 'kind', 'generationOf', 'amountOf', "'0 0 0 0'", 'lateOf')}
${lua.endOperation()}
return { 'aborted', record }`,
});

/**
 * budget-extend: Sets the remaining life of a hold.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, generation, nonce, ttlMs, retentionMs
 * Reply: ['extended' | 'finalized' | 'aborted' | 'expired', record], ['not_found']
 * Atomic: a hold that has ended meanwhile is never brought back.
 */
export const extendScript = lua.defineBudgetScript({
  name: 'budget-extend',
  ids: ['idKey'],
  args: [...lua.REF, 'ttlMs', 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
${lua.readOperation('crossed')}
if state == 'f' then return { 'finalized', record } end
if state == 'a' then return { 'aborted', record } end
if state == 'x' then return { 'expired', record } end

local ending = call('HGET', counters, '~')
local untilMs = nowMs + ttlMs + 2 * retentionMs
local expiresAtMs = format('%d', nowMs + ttlMs)
record = ${recordOf("'0'", "'1 p'", 'kind', 'generationOf', 'amountOf', "'0 0 0 0 0'")}
${TRY_ZREM}
${lua.KEEP_KEYS}
call('ZADD', pending, expiresAtMs, id)
call('HSET', records, 'o|' .. id, record)
return { 'extended', record }`,
});
