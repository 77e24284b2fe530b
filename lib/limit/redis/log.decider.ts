import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from '../limit.times.js';
import {
  NOW_MS_ONCE,
  PARSE_PENALTIES,
  PRUNE,
  RULES,
  SET_BLOCK,
  WAIT_FOR_ROOM,
  WINDOW_STARTS,
  denyIfBlocked,
  indent,
} from './limit.fragments.js';
import { inLines } from '../../script/fragments.js';

export const DECIDE = /* lua */ `
-- Reads: call, callId, heal.
-- Changes: nowMs.
-- Sets: scoreOf, decide.
-- Returns the score of the call, if it is in the set: it is in flight, or the Redis client has sent the command twice.
local function scoreOf(attempts)
  return tonumber(call('ZSCORE', attempts, callId) or nil)
end

-- Returns whether the limit allows the call, and the reply. Without \`commit\` nothing is counted.
local function decide(commit, attempts, block, penalties, cost, mode,
  ${inLines(RULES)})
  local state = call('MGET', block, penalties)
  local blockValue, penaltiesValue = state[1], state[2]
  local keepMs = (longWindowMs > shortWindowMs and longWindowMs or shortWindowMs) + ${SLACK_MS}
  ${indent(
    denyIfBlocked(
      `false, remainingMs .. ' ' .. blockValue`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(attempts, keepMs)`,
      `heal(penalties, penaltiesTtlMs + remainingMs)`,
    ),
    2,
  )}

  ${indent(NOW_MS_ONCE, 2)}
  ${indent(PARSE_PENALTIES, 2)}
  if penaltiesValue then heal(penalties, penaltiesTtlMs) end
  ${indent(WINDOW_STARTS, 2)}
  local from = shortFrom < longFrom and shortFrom or longFrom
  local isAttempt = mode == 'attempt'
  local flightFrom = ${IN_FLIGHT_MS} - nowMs
  local inFlight = isAttempt and 0 or call('ZCOUNT', attempts, '-inf', '(' .. flightFrom)
  local shortCount = call('ZCOUNT', attempts, '(' .. from, '+inf')
  if call('ZCARD', attempts) > shortCount + inFlight then
    ${indent(PRUNE, 4)}
    if not isAttempt then call('ZREMRANGEBYSCORE', attempts, flightFrom, '(0') end
  end
  local longCount = shortCount
  if shortFrom > from then shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf') end
  if longFrom > from then longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf') end

  cost = tonumber(cost)
  local shortFull = shortCount + cost >= shortThreshold
  local longFull = longThreshold > 0 and longCount + cost >= longThreshold
  if shortFull and shortBlockMs == 0 and mode ~= 'confirm' and not scoreOf(attempts) then
    ${indent(WAIT_FOR_ROOM, 4)}
    heal(attempts, keepMs)
    return false, waitMs .. ' window ' .. shortCount .. ' ' .. longCount
  end

  local option, score, blocks = 'NX', nowMs, false
  if mode == 'enter' then
    -- With a block, the call that would fill a tier may enter: if it fails, it sets the block. Without one it needs
    -- room.
    local entering = shortBlockMs == 0 and cost or 0
    local busy = shortCount + inFlight + entering >= shortThreshold
      or longThreshold > 0 and longCount + inFlight >= longThreshold
    if busy and not scoreOf(attempts) then
      heal(attempts, keepMs)
      return false, '${BUSY_RETRY_MS} busy ' .. shortCount .. ' ' .. longCount
    end
    score = -nowMs
  else
    blocks = longFull or shortFull and shortBlockMs > 0
    if mode == 'confirm' then option = 'CH' end
    if (blocks or mode == 'confirm') and (scoreOf(attempts) or -1) >= 0 then
      commit, blocks = false, false
    end
    if shortFloor >= score then score = shortFloor + 1 end
    if longFloor >= score then score = longFloor + 1 end
  end

  -- If these keys hold another type, the script must fail before the first write of any limit.
  if blocks then call('GET', block) call('GET', penalties) end
  if commit then
    local added
    if cost == 1 then
      added = call('ZADD', attempts, option, score, callId)
    else
      local members = {score, callId}
      for i = 2, cost do
        members[2 * i - 1] = score
        members[2 * i] = callId .. ':' .. i
      end
      added = call('ZADD', attempts, option, unpack(members))
    end
    call('PEXPIRE', attempts, keepMs)
    if mode ~= 'enter' then shortCount, longCount = shortCount + added, longCount + added end
  end
  -- The time until the short window is empty: exact if this call was counted, otherwise an upper bound.
  if not blocks or not commit then
    return not blocks, (shortCount > 0 and shortWindowMs or 0) .. ' ok ' .. shortCount .. ' ' .. longCount
  end

  ${indent(SET_BLOCK, 2)}
  return false, blockMs .. ' ' .. blockValue
end`;
