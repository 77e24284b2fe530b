import { defineScript } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import { denyIfBlocked, indent, NOW_MS_ONCE } from './limit.fragments.js';
import { decodeDone, decodePeek } from './limit.replies.js';

// The keys of an identity under a limit whose algorithm is `fixed-window`, both with a TTL:
//   window    String  "<count> <endsAt> <lastCall> <lastForgiven>": the count until `endsAt` (in ms), the id of the call
//                     that was counted last, and the id of the call that lowered the count last. The end is part of the
//                     value, so that a window which lost its TTL still ends.
//   block     String  A block that was set by hand, as in check.script.ts.

/**
 * Sets `count` and `endsAtMs` from `value`, and with `calls` also `last` and `forgiven`. If no window is open, they are 0,
 * nil, '' and ''.
 */
const parseWindow = (calls: boolean): string => /* lua */ `
local count, endsAtMs${calls ? ', last, forgiven' : ''} = 0, nil${calls ? ", '', ''" : ''}
if value then
  local counted, ends${calls ? ', by, undone' : ''} =
    string.match(value, '${calls ? '^(%d+) (%d+) ([%w_-]*) ([%w_-]*)$' : '^(%d+) (%d+) [%w_-]* [%w_-]*$'}')
  if not counted then error('SYNCGUARD_FOREIGN the window is not ours', 0) end
  if tonumber(ends) > nowMs then
    count, endsAtMs${calls ? ', last, forgiven' : ''} = tonumber(counted), tonumber(ends)${calls ? ', by, undone' : ''}
  end
end`;

/** Writes the window. Sets the TTL to the rest of the window, also if the key had lost its TTL. */
const writeWindow = (last: string, forgiven: string): string =>
  `call('SET', window, string.format('%.0f %.0f %s %s', count, endsAtMs, ${last}, ${forgiven}), 'PX', endsAtMs - nowMs)`;

/**
 * The decider of a fixed window. It counts a call only if the call fits. For a denied call it replies the time until the
 * window ends. A replied time is never longer than a window, even after the clock has stepped back.
 */
export const DECIDE_IN_WINDOW = /* lua */ `
local function decideInWindow(commit, window, block, cost, shortWindowMs, shortThreshold)
  local blockValue, value = call('GET', block), call('GET', window)
  ${indent(
    denyIfBlocked(
      `false, remainingMs .. ' ' .. blockValue`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(window, shortWindowMs)`,
    ),
    2,
  )}

  ${indent(NOW_MS_ONCE, 2)}
  ${indent(parseWindow(true), 2)}
  endsAtMs = endsAtMs or nowMs + shortWindowMs
  if last ~= callId then
    cost = tonumber(cost)
    if count + cost >= shortThreshold then
      if commit then heal(window, endsAtMs - nowMs) end
      return false, math.min(endsAtMs - nowMs, shortWindowMs) .. ' window ' .. count .. ' ' .. count
    end
    if commit then
      count = count + cost
      ${writeWindow('callId', 'forgiven')}
    end
  end
  return true, (count > 0 and math.min(endsAtMs - nowMs, shortWindowMs) or 0) .. ' ok ' .. count .. ' ' .. count
end`;

/**
 * limit-peek-window: Replies as a check of cost 1 would, and writes nothing.
 * KEYS: window, block
 * ARGV: shortThreshold, shortWindowMs
 * Reply: as limit-check-*.
 * Atomic: count, block and time belong together.
 */
export const peekWindowScript = defineScript({
  name: 'limit-peek-window',
  keys: ['window', 'block'],
  args: ['shortThreshold', 'shortWindowMs'],
  lua: /* lua */ `
local call = redis.call
local blockValue, value = call('GET', block), call('GET', window)
${denyIfBlocked(`remainingMs .. ' ' .. blockValue`).trim()}
${NOW_MS}
${parseWindow(false)}
if count == 0 then return '0 ok 0 0' end
local status = count + 1 >= tonumber(shortThreshold) and 'window' or 'ok'
return table.concat({math.min(endsAtMs - nowMs, tonumber(shortWindowMs)), status, count, count}, ' ')`,
  decode: decodePeek,
});

/**
 * limit-forgive-window: Lowers the count of the open window, but never below 0.
 * KEYS: window
 * ARGV: callId, amount
 * Reply: 1
 * Atomic: a call that is sent twice finds its own id, and lowers the count once.
 */
export const forgiveWindowScript = defineScript({
  name: 'limit-forgive-window',
  keys: ['window'],
  args: ['callId', 'amount'],
  lua: /* lua */ `
local call = redis.call
local value = call('GET', window)
${NOW_MS}
${parseWindow(true)}
if count == 0 or forgiven == callId then return 1 end
count = math.max(0, count - amount)
${writeWindow('last', 'callId')}
return 1`,
  decode: decodeDone('limit-forgive-window'),
});
