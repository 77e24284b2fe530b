import { ARM } from './budget.thresholds.fragments.js';
import { READ_COUNTERS, START_SETTLING, TRY_ZREM, unreadable } from './budget.fragments.js';
import {
  KEEP_KEYS,
  OPEN_DETAIL,
  READ_OPERATION,
  REF,
  defineBudgetScript,
  endOperation,
  joined,
} from './budget.operation.fragments.js';

/**
 * budget-abort: Ends a hold without spending.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, generation, nonce, retentionMs
 * Reply: ['aborted' | 'replayed' | 'finalized' | 'expired' (of an older generation), record, detail],
 *   ['not_found']
 * Atomic: a hold ends once, and its amount goes back in the same step.
 */
export const abortScript = defineBudgetScript({
  name: 'budget-abort',
  ids: ['idKey'],
  args: [...REF, 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
${READ_OPERATION}
local state, middle, amountOf, dates, crossed =
  match(record, '^1 (%a) (%a %d+ (%d+) %d+ %d+ %d+ %d+) %d (%d+ %d+) %d+ (%S+)$')
if not state then ${unreadable('record')} end
if state == 'f' then return { 'finalized', record, detail } end
if state == 'a' then return { 'replayed', record, detail } end
if slot ~= 'o|' .. id then return { 'expired', record, detail } end
${OPEN_DETAIL}
${READ_COUNTERS}
${ARM}
local inHold = state == 'p' and amountOf or 0
for i = 1, #limitOf do
  local committed, reserved, rest = match(packed[i], '^(1 %d+) (%d+) (%d+ %d+ %S+)$')
  if not committed then ${unreadable('packed[i]')} end
  packed[i] = committed .. ' ' .. format('%.0f ', math.max(reserved - inHold, 0)) .. rest
end
record = ${joined("'1 a'", 'middle', "(state == 'x' and '1' or '0')", 'dates', 'now', 'crossed')}
${endOperation()}
return { 'aborted', record, detail }`,
});

/**
 * budget-extend: Sets the remaining life of a hold.
 * KEYS: counters, records, pending, garbage, idKey
 * ARGV: id, generation, nonce, ttlMs, retentionMs
 * Reply: ['extended' | 'finalized' | 'aborted' | 'expired', record, detail], ['not_found']
 * Atomic: a hold that has ended meanwhile is never brought back.
 */
export const extendScript = defineBudgetScript({
  name: 'budget-extend',
  ids: ['idKey'],
  args: [...REF, 'ttlMs', 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
${READ_OPERATION}
local state, middle, rest = match(record, '^1 (%a)( %a %d+ %d+ %d+ %d+ %d+ %d+ %d %d+ )%d+( %d+ %S+)$')
if not state then ${unreadable('record')} end
if state == 'f' then return { 'finalized', record, detail } end
if state == 'a' then return { 'aborted', record, detail } end
if state == 'x' then return { 'expired', record, detail } end

local ending = redis.call('HGET', counters, '~')
local untilMs = nowMs + ttlMs + 2 * retentionMs
local expiresAtMs = format('%d', nowMs + ttlMs)
record = '1 ' .. state .. middle .. expiresAtMs .. rest
${TRY_ZREM}
${KEEP_KEYS}
redis.call('ZADD', pending, expiresAtMs, id)
redis.call('HSET', records, 'o|' .. id, record)
return { 'extended', record, detail }`,
});
