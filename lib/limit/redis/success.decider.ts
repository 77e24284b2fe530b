import { BUSY_RETRY_MS, IN_FLIGHT_MS } from '../limit.times.js';
import {
  ALL_PENALTIES,
  ALLOWED,
  CHECK_BLOCK_KEYS,
  COUNT_WITH_FLIGHTS,
  COUNTED_AT,
  DENY_IF_BLOCKED,
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
${SET_BLOCK}`;
