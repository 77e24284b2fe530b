import { defineScript } from '../script/define-script.js';
import { NOW_MS } from '../script/fragments.js';
import { answerBlock, indent, NOW_MS_ONCE } from './limit.fragments.js';
import { decodeDone, decodePeek } from './limit.replies.js';

// Of a limit whose algorithm is `fixed-window` an identity has two keys, both with a TTL:
//   window    String  "<count> <endsAt> <lastCall> <lastForgiven>": what was counted until `endsAt`, in ms, and the
//                     ids of the call that counted last and of the last that was taken back. The end is in the
//                     value, so that a window which lost its TTL still ends.
//   block     String  as of a sliding log: a block by hand.

/** `count`, `last`, `forgiven` and `endsAtMs` out of `value`; nothing and no end where no window is open. */
const PARSE_WINDOW = `
local count, last, forgiven, endsAtMs = 0, '', ''
if value then
  local counted, ends, by, undone = string.match(value, '^(%d+) (%d+) ([%w_-]*) ([%w_-]*)$')
  if not counted then error('SYNCGUARD_FOREIGN the window is not a count', 0) end
  if tonumber(ends) > nowMs then
    count, last, forgiven, endsAtMs = tonumber(counted), by, undone, tonumber(ends)
  end
end`;

/** The TTL is always what is left of the window: one that was lost comes back with it. */
const writeWindow = (last: string, forgiven: string): string =>
  `call('SET', window, string.format('%.0f %.0f %s %s', count, endsAtMs, ${last}, ${forgiven}), 'PX', endsAtMs - nowMs)`;

// What is told is no longer than the window, also where the clock stepped back.

/** `decide` for a fixed window: counts what fits and nothing else, so what it denies can wait for its end. */
export const DECIDE_IN_WINDOW = `
local function decideInWindow(commit, window, block, cost, tempWindowMs, tempThreshold)
  local held, value = call('GET', block), call('GET', window)
  ${indent(
    answerBlock(
      `false, remainingMs .. ' ' .. held`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(window, tempWindowMs)`,
    ),
    2,
  )}

  ${indent(NOW_MS_ONCE, 2)}
  ${indent(PARSE_WINDOW, 2)}
  endsAtMs = endsAtMs or nowMs + tempWindowMs
  if last ~= callId then
    cost = tonumber(cost)
    if count + cost >= tempThreshold then
      if commit then heal(window, endsAtMs - nowMs) end
      return false, math.min(endsAtMs - nowMs, tempWindowMs) .. ' window ' .. count .. ' ' .. count
    end
    if commit then
      count = count + cost
      ${writeWindow('callId', 'forgiven')}
    end
  end
  return true, (count > 0 and math.min(endsAtMs - nowMs, tempWindowMs) or 0) .. ' ok ' .. count .. ' ' .. count
end`;

/** Reads only: what a check would find. */
export const peekWindowScript = defineScript({
  name: 'limit-peek-window',
  keys: ['window', 'block'],
  args: ['tempThreshold', 'tempWindowMs'],
  lua: `
local call = redis.call
local held, value = call('GET', block), call('GET', window)
${answerBlock(`remainingMs .. ' ' .. held`).trim()}
${NOW_MS}
${PARSE_WINDOW}
if count == 0 then return '0 ok 0 0' end
local status = count + 1 >= tonumber(tempThreshold) and 'window' or 'ok'
return table.concat({math.min(endsAtMs - nowMs, tonumber(tempWindowMs)), status, count, count}, ' ')`,
  decode: decodePeek,
});

/** Takes back so much of what the open window has counted. */
export const forgiveWindowScript = defineScript({
  name: 'limit-forgive-window',
  keys: ['window'],
  args: ['callId', 'amount'],
  lua: `
local call = redis.call
local value = call('GET', window)
${NOW_MS}
${PARSE_WINDOW}
if count == 0 or forgiven == callId then return 1 end
count = math.max(0, count - amount)
${writeWindow('last', 'callId')}
return 1`,
  decode: decodeDone('limit-forgive-window'),
});
