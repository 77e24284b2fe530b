import { BUSY_RETRY_MS } from '../limit.times.js';
import {
  ALL_PENALTIES,
  ALLOWED,
  CHECK_BLOCK_KEYS,
  COUNT_ATTEMPTS,
  COUNT_WITH_FLIGHTS,
  COUNTED_AT,
  FLOORS,
  SCORE,
  SET_BLOCK,
  WAIT_FOR_ROOM,
  addCall,
  fullTiers,
  heal,
  indent,
  openLog,
} from './limit.fragments.js';

/** Denies a call under a limit without a block, until enough of the oldest attempts leave the window for it to fit. */
const DENY_UNTIL_ROOM = /* lua */ `
${heal('attempts', 'keepMs')}
${WAIT_FOR_ROOM}
return waitForRoom(shortCount, shortThreshold, shortFrom, shortWindowMs)
  .. ' window ' .. shortCount .. ' ' .. longCount`;

/** Counts the call, and sets a block if the call fills a tier. A call that is counted already does neither. */
const count = (option: 'NX' | 'CH', isCounted: string): string => /* lua */ `
local blocks = longFull or shortFull and shortBlockMs > 0
if ${isCounted} then
  return ${ALLOWED}
end
if blocks then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  if not commit then return '1 temp' end
end
if commit then
  local score = ${COUNTED_AT}
  local added
  ${indent(addCall(option, 'score', 'added = '), 2)}
  shortCount, longCount = shortCount + added, longCount + added
end
if not blocks then
  return ${ALLOWED}
end
${SET_BLOCK}`;

const COUNTED_BEFORE = `(${SCORE} or -1) >= 0`;

/** Counts a call. */
export const ATTEMPT = /* lua */ `${openLog(ALL_PENALTIES)}
${COUNT_ATTEMPTS}
${fullTiers('cost')}
if shortFull and shortBlockMs == 0 and not ${SCORE} then
  ${indent(DENY_UNTIL_ROOM, 2)}
end
${count('NX', `blocks and ${COUNTED_BEFORE}`)}`;

/**
 * Keeps a call as in flight that may become a failure. With a block, the call that would fill a tier may enter: if it
 * fails, it sets the block. Without one it needs room.
 */
export const ENTER = /* lua */ `${openLog(FLOORS)}
${COUNT_WITH_FLIGHTS}
local needed = shortBlockMs == 0 and cost or 0
local busy = shortCount + inFlight + needed >= shortThreshold
  or longThreshold > 0 and longCount + inFlight >= longThreshold
if busy and not ${SCORE} then
  if shortBlockMs == 0 and shortCount + cost >= shortThreshold then
    ${indent(DENY_UNTIL_ROOM, 4)}
  end
  ${indent(heal('attempts', 'keepMs'), 2)}
  return '${BUSY_RETRY_MS} busy ' .. shortCount .. ' ' .. longCount
end
if commit then
  ${indent(addCall('NX', '-nowMs'), 2)}
end
return ${ALLOWED}`;

/** Counts a call in flight as a failure. */
export const CONFIRM = /* lua */ `${openLog(ALL_PENALTIES)}
${COUNT_WITH_FLIGHTS}
${fullTiers('cost')}
${count('CH', COUNTED_BEFORE)}`;

/** Decides as a call of cost 1 would be decided, and writes nothing. The time until the window is empty is exact. */
export const PEEK = /* lua */ `${CHECK_BLOCK_KEYS}
${openLog(FLOORS)}
local shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf')
local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
if shortBlockMs == 0 and shortCount + cost >= shortThreshold then
  ${indent(DENY_UNTIL_ROOM, 2)}
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + shortWindowMs
end
return resetMs .. ' ok ' .. shortCount .. ' ' .. longCount`;
