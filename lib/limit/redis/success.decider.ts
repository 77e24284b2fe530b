import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from '../limit.times.js';
import {
  NOW_MS_ONCE,
  PARSE_PENALTIES,
  PRUNE,
  RULES,
  SET_BLOCK,
  WINDOW_STARTS,
  denyIfBlocked,
  indent,
} from './limit.fragments.js';
import { inLines } from '../../script/fragments.js';

/**
 * The decider of a limit that counts successes, over the same keys. `reserve` keeps room for a call, and `grant` counts it. A
 * success that has happened cannot be denied any more. So a call takes up room from the start, and counts unless it is
 * withdrawn. The success that fills a tier sets the block, and is answered as it is.
 */
export const DECIDE_SUCCESS = /* lua */ `
-- Reads: call, callId, heal.
-- Changes: nowMs.
-- Sets: decideSuccess.
local function decideSuccess(commit, attempts, block, penalties, cost, mode,
  ${inLines(RULES)})
  local state = call('MGET', block, penalties)
  local blockValue, penaltiesValue = state[1], state[2]
  local keepMs = (longWindowMs > shortWindowMs and longWindowMs or shortWindowMs) + ${SLACK_MS}
  local mine = tonumber(call('ZSCORE', attempts, callId) or nil)
  ${indent(NOW_MS_ONCE, 2)}
  ${indent(PARSE_PENALTIES, 2)}
  if penaltiesValue then heal(penalties, penaltiesTtlMs) end

  cost = tonumber(cost)
  if mode == 'grant' and (mine or -1) < 0 then
    -- If these keys hold another type, the script must fail before the first write.
    call('GET', block)
    call('GET', penalties)
    local score = nowMs
    if shortFloor >= score then score = shortFloor + 1 end
    if longFloor >= score then score = longFloor + 1 end
    call('ZADD', attempts, score, callId)
    for i = 2, cost do call('ZADD', attempts, score, callId .. ':' .. i) end
    call('PEXPIRE', attempts, keepMs)
  end
  ${indent(
    denyIfBlocked(
      `false, remainingMs .. ' ' .. blockValue`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(attempts, keepMs)`,
      `heal(penalties, penaltiesTtlMs + remainingMs)`,
    ),
    2,
  )}

  -- A call that has been in flight for too long counts as a success, because it was not shown to have failed.
  local lapsed = call('ZRANGEBYSCORE', attempts, ${IN_FLIGHT_MS} - nowMs, '(0', 'WITHSCORES')
  for i = 1, #lapsed, 2 do call('ZADD', attempts, -lapsed[i + 1], lapsed[i]) end

  ${indent(WINDOW_STARTS, 2)}
  local from = shortFrom < longFrom and shortFrom or longFrom
  local isAttempt = false
  if call('ZCOUNT', attempts, 0, from) > 0 then
    ${indent(PRUNE, 4)}
  end
  local inFlight = call('ZCOUNT', attempts, '-inf', '(0')
  local shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf')
  local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
  local counts = shortCount .. ' ' .. longCount

  local isNew = mode == 'reserve' and not mine
  local shortFull = shortCount + 1 >= shortThreshold
  local longFull = longThreshold > 0 and longCount + 1 >= longThreshold
  if (shortFull or longFull) and shortBlockMs > 0 and (isNew or mode == 'grant') then
    if not commit then return false, '1 temp ' .. counts .. ' 1' end
    call('GET', block)
    call('GET', penalties)
    ${indent(SET_BLOCK, 4)}
    heal(attempts, keepMs)
    return false, blockMs .. ' ' .. blockValue
  end
  if isNew then
    local function waitForRoom(count, threshold, windowFrom, windowMs)
      local excess = threshold > 0 and count + cost - threshold + 1 or 0
      -- A call that costs more than the tier holds never fits. It is not denied here, but as busy.
      if excess < 1 or excess > count then return 0 end
      local oldest = call('ZRANGEBYSCORE', attempts, '(' .. windowFrom, '+inf',
        'WITHSCORES', 'LIMIT', excess - 1, 1)
      return math.min(oldest[2] - nowMs, 0) + windowMs
    end
    local waitMs = math.max(
      waitForRoom(shortCount, shortThreshold, shortFrom, shortWindowMs),
      waitForRoom(longCount, longThreshold, longFrom, longWindowMs))
    if waitMs > 0 then
      heal(attempts, keepMs)
      return false, waitMs .. ' window ' .. counts
    end
    if shortCount + inFlight + cost >= shortThreshold
      or longThreshold > 0 and longCount + inFlight + cost >= longThreshold then
      heal(attempts, keepMs)
      return false, '${BUSY_RETRY_MS} busy ' .. counts
    end
    if commit then
      call('ZADD', attempts, -nowMs, callId)
      for i = 2, cost do call('ZADD', attempts, -nowMs, callId .. ':' .. i) end
      call('PEXPIRE', attempts, keepMs)
    end
  end
  return true, (shortCount > 0 and shortWindowMs or 0) .. ' ok ' .. counts
end`;
