import { BUSY_RETRY_MS } from '../limit.times.js';
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
  readState,
} from './limit.fragments.js';

/** Denies a call under a limit without a block, until enough of the oldest attempts leave the window for it to fit. */
const DENY_UNTIL_ROOM = /* lua */ `
${heal('attempts', 'keepMs')}
${WAIT_FOR_ROOM}
return waitForRoom(cost, shortCount, shortThreshold, shortFrom, shortWindowMs)
  .. ' window ' .. shortCount .. ' ' .. longCount`;

/** Counts a call, and sets a block if the call fills a tier. A call that is counted already does neither. */
export const ATTEMPT = /* lua */ `${openLog(ALL_PENALTIES, 'attempts')}
${COUNT_ATTEMPTS}
${fullTiers('cost')}
if shortFull and shortBlockMs == 0 and not ${SCORE} then
  ${indent(DENY_UNTIL_ROOM, 2)}
end
local blocks = longFull or shortFull and shortBlockMs > 0
if blocks and (${SCORE} or -1) >= 0 then
  return ${ALLOWED}
end
local newest = 0
if blocks then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  if not commit then return '1 temp' end
  newest = tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] or 0)
end
if commit then
  newest = math.max(newest, latest)
  local added
  ${indent(addCall('NX', 'latest', 'added = '), 2)}
  shortCount, longCount = shortCount + added, longCount + added
end
if not blocks then
  return ${ALLOWED}
end
${SET_BLOCK}`;

/** Keeps a call as in flight, if there is room for it beside the calls that count and those in flight. */
const enter = (needed: string): string => /* lua */ `${openLog(FLOORS, 'flights')}
local known = ${SCORE}
${COUNT_WITH_FLIGHTS}
if known then
  return ${ALLOWED}
end
local needed = ${needed}
${WAIT_FOR_ROOM}
local waitMs = math.max(
  waitForRoom(needed, shortCount, shortThreshold, shortFrom, shortWindowMs),
  waitForRoom(needed, longCount, longThreshold, longFrom, longWindowMs))
local taken = inFlight + needed
local busy = shortCount + taken >= shortThreshold or longThreshold > 0 and longCount + taken >= longThreshold
if waitMs > 0 or busy then
  ${indent(heal('attempts', 'keepMs'), 2)}
  return (waitMs > 0 and waitMs .. ' window ' or '${BUSY_RETRY_MS} busy ') .. shortCount .. ' ' .. longCount
end
if commit then
  ${indent(addCall('NX', '-nowMs'), 2)}
end
return ${ALLOWED}`;

/**
 * Lets a call in that may become a failure. With a block, the call that would fill a tier may enter: if it fails, it sets the
 * block. Without one it needs room.
 */
export const ENTER = enter('shortBlockMs == 0 and cost or 0');

/**
 * Keeps room for a call that may succeed. A success that has happened cannot be denied any more. So the call takes up room
 * from the start, and counts unless it is withdrawn.
 */
export const RESERVE = enter('cost');

/** Counts a call in flight, even while there is a block. */
const countFlight = (
  penalties: Parameters<typeof readPenalties>[0],
): string => /* lua */ `${readState('flights')}
${readPenalties(penalties)}
if (${SCORE} or -1) < 0 then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  local score = ${COUNTED_AT}
  ${indent(addCall('CH', 'score'), 2)}
end
${DENY_IF_BLOCKED}
${WINDOW_STARTS}
${COUNT_WITH_FLIGHTS}`;

/** Counts a call in flight. It sets the block if a tier is full when `next` more would come. */
const settle = (next: string): string => /* lua */ `${countFlight(ALL_PENALTIES)}
${fullTiers(next)}
if shortBlockMs == 0 or not (shortFull or longFull) then
  return ${ALLOWED}
end
${CHECK_BLOCK_KEYS}
${heal('attempts', 'keepMs')}
${READ_NEWEST}
${SET_BLOCK}`;

/** Counts a call in flight as a failure. The failure that fills a tier is denied itself. */
export const CONFIRM = settle('0');

/** Counts a call in flight as a success. The success that fills a tier sets the block, and is answered as it is. */
export const GRANT = settle('1');

/** Counts a call in flight, and never sets a block. */
export const FILL = /* lua */ `${countFlight(FLOORS)}
return ${ALLOWED}`;

/** Decides as a call would be decided, and writes nothing. The time until the window is empty is exact. */
export const PEEK = /* lua */ `${CHECK_BLOCK_KEYS}
${openLog(FLOORS, 'attempts')}
local shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf')
local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
if shortBlockMs == 0 and shortCount + cost >= shortThreshold then
  ${indent(DENY_UNTIL_ROOM, 2)}
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + shortWindowMs
end
local known = penaltiesValue or call('ZCARD', attempts) > 0
return resetMs .. (known and ' ok ' or ' unknown ') .. shortCount .. ' ' .. longCount`;
