import { BUSY_RETRY_MS, IN_FLIGHT_MS } from '../limit.times.js';
import {
  ALLOWED,
  ALL_PENALTIES,
  CHECK_BLOCK_KEYS,
  COUNTED_AT,
  COUNT_ATTEMPTS,
  COUNT_WITH_FLIGHTS,
  DENY_IF_BLOCKED,
  FLOORS,
  READ_NEWEST,
  READ_STATE,
  SCORE,
  SET_BLOCK,
  WAIT_FOR_ROOM,
  WINDOW_STARTS,
  addCall,
  fullTiers,
  heal,
  indent,
  openLog,
  readPenalties,
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
local newest = 0
if blocks then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  if not commit then return '1 temp' end
  newest = tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] or 0)
end
if commit then
  local score = ${COUNTED_AT}
  newest = math.max(newest, score)
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

// A success that has happened cannot be denied any more. So a call takes up room from the start, and counts unless it is
// withdrawn. The success that fills a tier sets the block, and is answered as it is.

/** Counts the successes. A call that was in flight for too long is one, because it was not shown to have failed. */
const COUNT_SUCCESSES = /* lua */ `
local lapsed = call('ZRANGEBYSCORE', attempts, ${IN_FLIGHT_MS} - nowMs, '(0', 'WITHSCORES')
for i = 1, #lapsed, 2 do call('ZADD', attempts, -lapsed[i + 1], lapsed[i]) end
${COUNT_WITH_FLIGHTS}
${fullTiers('1')}
local blocks = (shortFull or longFull) and shortBlockMs > 0`;

/** Keeps room for a call. */
export const RESERVE = /* lua */ `${openLog(ALL_PENALTIES)}
local known = ${SCORE}
${COUNT_SUCCESSES}
if known then
  return ${ALLOWED}
end
if blocks then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  if not commit then return '1 temp' end
  ${indent(heal('attempts', 'keepMs'), 2)}
  ${indent(READ_NEWEST, 2)}
  ${indent(SET_BLOCK, 2)}
end
${WAIT_FOR_ROOM}
local waitMs = math.max(
  waitForRoom(shortCount, shortThreshold, shortFrom, shortWindowMs),
  waitForRoom(longCount, longThreshold, longFrom, longWindowMs))
local taken = inFlight + cost
local busy = shortCount + taken >= shortThreshold or longThreshold > 0 and longCount + taken >= longThreshold
if waitMs > 0 or busy then
  ${indent(heal('attempts', 'keepMs'), 2)}
  return (waitMs > 0 and waitMs .. ' window ' or '${BUSY_RETRY_MS} busy ') .. shortCount .. ' ' .. longCount
end
if commit then
  ${indent(addCall('NX', '-nowMs'), 2)}
end
return ${ALLOWED}`;

/** Counts a success, even while there is a block. */
export const GRANT = /* lua */ `${READ_STATE}
${readPenalties(ALL_PENALTIES)}
if (${SCORE} or -1) < 0 then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  local score = ${COUNTED_AT}
  ${indent(addCall('CH', 'score'), 2)}
end
${DENY_IF_BLOCKED}
${WINDOW_STARTS}
${COUNT_SUCCESSES}
if not blocks then
  return ${ALLOWED}
end
${CHECK_BLOCK_KEYS}
${heal('attempts', 'keepMs')}
${READ_NEWEST}
${SET_BLOCK}`;

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
