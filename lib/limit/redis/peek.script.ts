import {
  RULES,
  WAIT_FOR_ROOM,
  WINDOW_STARTS,
  denyIfBlocked,
  indent,
  parsePenalties,
} from './limit.fragments.js';
import { decodePeek } from './limit.replies.js';
import { defineScript } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/**
 * limit-peek: Replies as a check of cost 1 would, and writes nothing.
 * KEYS: attempts, block, penalties
 * ARGV: RULES
 * Reply: as limit-check-*. An allowed reply has the exact time until the short window is empty.
 * Atomic: counts, block and time belong together.
 */
export const peekScript = defineScript({
  name: 'limit-peek',
  keys: ['attempts', 'block', 'penalties'],
  args: RULES,
  lua: /* lua */ `
local call, cost = redis.call, 1
shortWindowMs, shortThreshold = tonumber(shortWindowMs), tonumber(shortThreshold)
longThreshold = tonumber(longThreshold)

local blockValue = call('GET', block)
${denyIfBlocked(`remainingMs .. ' ' .. blockValue`).trim()}
${NOW_MS}
local penaltiesValue = call('GET', penalties)
${parsePenalties('shortFloor', 'longFloor')}
${WINDOW_STARTS}
local shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf')
local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
if tonumber(shortBlockMs) == 0 and shortCount + cost >= shortThreshold then
  ${indent(WAIT_FOR_ROOM, 2)}
  return waitMs .. ' window ' .. shortCount .. ' ' .. longCount
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + shortWindowMs
end
return resetMs .. ' ok ' .. shortCount .. ' ' .. longCount`,
  decode: decodePeek,
});
