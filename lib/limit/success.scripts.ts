import {
  answerBlock,
  indent,
  NOW_MS_ONCE,
  PARSE_RECORD,
  PRUNE,
  RULES,
  SET_BLOCK,
  WINDOW_STARTS,
} from './limit.fragments.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from './limit.values.js';

/**
 * `decide` for a limit that counts successes, over the same keys. `reserve` gives a call room, `grant` counts it. Unlike a
 * failure, a success that is one too many cannot be refused any more, so it takes up room from the start, and counts
 * unless it is withdrawn. The success that fills a tier sets the block, and is none the worse for it.
 */
export const DECIDE_SUCCESS = `
local function decideSuccess(commit, attempts, block, seq, cost, stage, ${RULES.join(', ')})
  local state = call('MGET', block, seq)
  local held, record = state[1], state[2]
  local keepMs = (longWindowMs > tempWindowMs and longWindowMs or tempWindowMs) + ${SLACK_MS}
  local mine = tonumber(call('ZSCORE', attempts, callId) or nil)
  ${indent(NOW_MS_ONCE, 2)}
  ${indent(PARSE_RECORD, 2)}
  if record then heal(seq, recordTtlMs) end

  cost = tonumber(cost)
  if stage == 'grant' and (mine or -1) < 0 then
    -- A foreign value under these names has to fail before the first write.
    call('GET', block)
    call('GET', seq)
    local score = nowMs
    if tempFloor >= score then score = tempFloor + 1 end
    if longFloor >= score then score = longFloor + 1 end
    call('ZADD', attempts, score, callId)
    for i = 2, cost do call('ZADD', attempts, score, callId .. ':' .. i) end
    call('PEXPIRE', attempts, keepMs)
  end
  ${indent(
    answerBlock(
      `false, remainingMs .. ' ' .. held`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(attempts, keepMs)`,
      `heal(seq, recordTtlMs + remainingMs)`,
    ),
    2,
  )}

  -- Of a call that has been in flight for too long nobody has shown that it was no success.
  local lapsed = call('ZRANGEBYSCORE', attempts, ${IN_FLIGHT_MS} - nowMs, '(0', 'WITHSCORES')
  for i = 1, #lapsed, 2 do call('ZADD', attempts, -lapsed[i + 1], lapsed[i]) end

  ${indent(WINDOW_STARTS, 2)}
  local from = tempFrom < longFrom and tempFrom or longFrom
  local isAttempt = false
  if call('ZCOUNT', attempts, 0, from) > 0 then
    ${indent(PRUNE, 4)}
  end
  local inFlight = call('ZCOUNT', attempts, '-inf', '(0')
  local shortCount = call('ZCOUNT', attempts, '(' .. tempFrom, '+inf')
  local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
  local counts = shortCount .. ' ' .. longCount

  local isNew = stage == 'reserve' and not mine
  local tempFull = shortCount + 1 >= tempThreshold
  local longFull = longThreshold > 0 and longCount + 1 >= longThreshold
  if (tempFull or longFull) and tempBlockMs > 0 and (isNew or stage == 'grant') then
    if not commit then return false, '1 temp ' .. counts .. ' 1' end
    call('GET', block)
    call('GET', seq)
    ${indent(SET_BLOCK, 4)}
    heal(attempts, keepMs)
    return false, blockMs .. ' ' .. held
  end
  if isNew then
    local function waitForRoom(count, threshold, windowFrom, windowMs)
      local excess = threshold > 0 and count + cost - threshold + 1 or 0
      -- A call that is dearer than a tier holds finds no room at any time: it is told to ask again.
      if excess < 1 or excess > count then return 0 end
      local oldest = call('ZRANGEBYSCORE', attempts, '(' .. windowFrom, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1)
      return math.min(oldest[2] - nowMs, 0) + windowMs
    end
    local waitMs = math.max(
      waitForRoom(shortCount, tempThreshold, tempFrom, tempWindowMs),
      waitForRoom(longCount, longThreshold, longFrom, longWindowMs))
    if waitMs > 0 then
      heal(attempts, keepMs)
      return false, waitMs .. ' window ' .. counts
    end
    if shortCount + inFlight + cost >= tempThreshold
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
  return true, (shortCount > 0 and tempWindowMs or 0) .. ' ok ' .. counts
end`;
