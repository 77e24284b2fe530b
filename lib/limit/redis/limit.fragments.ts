import { takeApart } from '../../script/fragments.js';
import { IN_FLIGHT_MS, SLACK_MS } from '../limit.times.js';

// Lua that several scripts of the limiter share. These are text fragments and not Lua functions, because each run of a
// script would create the functions anew. Each script has a local `call`, because `redis.call` costs two look-ups.

/** Indents all lines of a fragment but the first. */
export function indent(lua: string, by: number): string {
  return lua.trim().replaceAll('\n', `\n${' '.repeat(by)}`);
}

/** Sets `nowMs` by the server's clock, unless another limit of the same call has set it. */
export const NOW_MS_ONCE = /* lua */ `
-- Reads: call.
-- Changes: nowMs.
if not nowMs then
  local time = call('TIME')
  nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
end`;

/** Gives a key that has lost its TTL a new one. */
export const heal = (key: string, ttlMs: string): string =>
  `if commit and call('PTTL', ${key}) == -1 then\n  call('PEXPIRE', ${key}, ${ttlMs})\nend`;

/**
 * Denies the call if there is a block. Expects the value of the block in `blockValue`. Sets `remainingMs` to the time until
 * the block ends. If the block has lost its TTL, it starts again in full, and the commands of `heals` run.
 */
export const denyIfBlocked = (...heals: string[]): string => /* lua */ `
if blockValue then
  local remainingMs = call('PTTL', block)
  if remainingMs < 0 then
    remainingMs = tonumber(string.match(blockValue, '^%a+ %d+ %d+ (%d+)'))
    if not remainingMs then error('SYNCGUARD_FOREIGN the block is not ours', 0) end
    ${indent([heal('block', 'remainingMs'), ...heals].join('\n'), 4)}
  end
  if remainingMs > 0 then return remainingMs .. ' ' .. blockValue end
end`;

const PENALTIES = {
  shortFloor: '%d+',
  longFloor: '%d+',
  shortStrikes: '%d+',
  longStrikes: '%d+',
  forgiven: '[%w_-]*',
};

type Penalty = keyof typeof PENALTIES;

export const FLOORS = ['shortFloor', 'longFloor'] as const satisfies Penalty[];
export const ALL_PENALTIES = Object.keys(PENALTIES) as Penalty[];

/** Sets locals to fields of `penaltiesValue`. check.script.ts says what they mean. A script that only counts needs FLOORS. */
export const parsePenalties = (names: readonly Penalty[]): string => /* lua */ `
-- Reads: penaltiesValue.
-- Sets: ${names.join(', ')}.
local ${names.join(', ')} = ${names.map((name) => (name === 'forgiven' ? "''" : 0)).join(', ')}
if penaltiesValue then
  ${indent(takeApart('penaltiesValue', PENALTIES, names), 2)}
  if not shortFloor then error('SYNCGUARD_FOREIGN the penalties are not ours', 0) end
  shortFloor, longFloor = tonumber(shortFloor), tonumber(longFloor)
end`;

export const formatPenalties = (by: string): string =>
  `string.format('%.0f %.0f %.0f %.0f %s',\n  shortFloor, longFloor, shortStrikes, longStrikes, ${by})`;

/** Reads what a log decides by. `keepMs` is how long its attempts are kept. */
export const READ_STATE = /* lua */ `
-- Reads: call, block, penalties, longWindowMs, shortWindowMs.
-- Sets: state, blockValue, penaltiesValue, keepMs.
local state = call('MGET', block, penalties)
local blockValue, penaltiesValue = state[1], state[2]
local keepMs = (longWindowMs > shortWindowMs and longWindowMs or shortWindowMs) + ${SLACK_MS}`;

export const DENY_IF_BLOCKED = /* lua */ `
-- Reads: blockValue, call, block, commit, attempts, keepMs, penalties, penaltiesTtlMs.${denyIfBlocked(
  heal('attempts', 'keepMs'),
  heal('penalties', 'penaltiesTtlMs + remainingMs'),
)}`;

export const readPenalties = (names: readonly Penalty[]): string => /* lua */ `
${NOW_MS_ONCE}
${parsePenalties(names)}
if penaltiesValue then
  ${indent(heal('penalties', 'penaltiesTtlMs'), 2)}
end`;

/**
 * Sets `shortFrom` and `longFrom`. Attempts after these instants count. A window has no upper end, so that no attempt is
 * lost when the clock steps back.
 */
export const WINDOW_STARTS = /* lua */ `
-- Reads: nowMs, shortWindowMs, shortFloor, longThreshold, longWindowMs, longFloor.
-- Sets: shortFrom, longFrom.
local shortFrom = nowMs - shortWindowMs
if shortFloor > shortFrom then shortFrom = shortFloor end
local longFrom = shortFrom
if longThreshold > 0 then
  longFrom = nowMs - longWindowMs
  if longFloor > longFrom then longFrom = longFloor end
end`;

export const openLog = (names: readonly Penalty[]): string =>
  `${READ_STATE}${DENY_IF_BLOCKED}${readPenalties(names)}${WINDOW_STARTS}`;

/**
 * Sets `shortCount` and `longCount`, and removes what is older than all windows. `flights` counts what is in flight, and
 * `lapsed` removes what is no longer in flight.
 *
 * The first command of a removal changes nothing, but a server whose memory is full refuses it. A server checks a script
 * at its first write only. So after a removal as first write, it would let the script add to the full memory.
 */
const countAttempts = (
  first: string,
  flights: string,
  inFlight: string,
  lapsed: string,
): string => /* lua */ `
local from = shortFrom < longFrom and shortFrom or longFrom
${flights}
local shortCount = call('ZCOUNT', attempts, '(' .. from, '+inf')
if call('ZCARD', attempts) > shortCount${inFlight} then
  call('ZADD', attempts, 'XX', 0, '')
  call('ZREMRANGEBYSCORE', attempts, ${first}, from)
  ${lapsed}
end
local longCount = shortCount
if shortFrom > from then shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf') end
if longFrom > from then longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf') end`;

/** Counts the attempts of a limit that has nothing in flight. */
export const COUNT_ATTEMPTS = /* lua */ `
-- Reads: shortFrom, longFrom, call, attempts.
-- Sets: from, shortCount, longCount.${countAttempts(`'-inf'`, '', '', '')}`;

export const COUNT_WITH_FLIGHTS = /* lua */ `
-- Reads: shortFrom, longFrom, nowMs, call, attempts.
-- Sets: from, flightFrom, inFlight, shortCount, longCount.${countAttempts(
  '0',
  `local flightFrom = ${IN_FLIGHT_MS} - nowMs
local inFlight = call('ZCOUNT', attempts, '-inf', '(' .. flightFrom)`,
  ' + inFlight',
  `call('ZREMRANGEBYSCORE', attempts, flightFrom, '(0')`,
)}`;

export const fullTiers = (cost: string): string => /* lua */ `
local shortFull = shortCount + ${cost} >= shortThreshold
local longFull = longThreshold > 0 and longCount + ${cost} >= longThreshold`;

/** The score of the call, if it is in the set: it is in flight, or the Redis client has sent the command twice. */
export const SCORE = `tonumber(call('ZSCORE', attempts, callId) or nil)`;

/** Takes back what the call has added, and fails with what an ACL has refused. */
const failWith = (refusal: string): string => /* lua */ `
local ids = {callId}
for i = 2, cost do ids[i] = callId .. ':' .. i end
call('ZREM', attempts, unpack(ids))
error(${refusal}.err, 0)`;

/** Adds the call. ZADD comes first, because a full server refuses it there. */
export const addCall = (option: string, score: string, added = ''): string => /* lua */ `
if cost == 1 then
  ${added}call('ZADD', attempts, '${option}', ${score}, callId)
else
  local members = {${score}, callId}
  for i = 2, cost do
    members[2 * i - 1] = ${score}
    members[2 * i] = callId .. ':' .. i
  end
  ${added}call('ZADD', attempts, '${option}', unpack(members))
end
local ends = redis.pcall('PEXPIRE', attempts, keepMs)
if type(ends) == 'table' then
  ${indent(failWith('ends'), 2)}
end`;

/** When a call counts. It comes after what has set a block, so that it counts for the next one. */
export const COUNTED_AT = 'math.max(nowMs, shortFloor + 1, longFloor + 1)';

/** Returns how long a call waits until enough of the oldest attempts have left a window. 0 if the call fits now. */
export const WAIT_FOR_ROOM = /* lua */ `
-- Reads: cost, call, attempts, nowMs.
-- Sets: waitForRoom.
local function waitForRoom(count, threshold, windowFrom, windowMs)
  local excess = threshold > 0 and count + cost - threshold + 1 or 0
  -- A call that costs more than the tier holds never fits, so there is no time to wait for.
  if excess < 1 or excess > count then return 0 end
  local oldest = call('ZRANGEBYSCORE', attempts, '(' .. windowFrom, '+inf',
    'WITHSCORES', 'LIMIT', excess - 1, 1)
  -- If the clock stepped back, attempts lie in the future. The wait is still no longer than the window.
  return math.min(oldest[2] - nowMs, 0) + windowMs
end`;

/** Before the first write of any limit: it must fail if these keys hold another type. */
export const CHECK_BLOCK_KEYS = /* lua */ `
-- Reads: call, block, penalties.
call('GET', block)
call('GET', penalties)`;

/** Denies the call by a new block of the tiers that are full, and writes its penalties. */
/** Sets `newest`, the time of the newest attempt. */
export const READ_NEWEST = /* lua */ `
-- Reads: call, attempts.
-- Sets: newest.
local newest = tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] or 0)`;

export const SET_BLOCK = /* lua */ `
-- Reads: call, callId, cost, attempts, newest, shortFull, longFull, shortBlockMs, factor, longBlockMs,
--   maxBlockMs, shortCount, longCount, block, penalties, forgiven, penaltiesTtlMs.
-- Changes: shortFloor, longFloor, longStrikes, shortStrikes, blockValue.
-- Sets: scope, blockMs, set.
-- Every window that is full starts again after its newest attempt, even if the clock has stepped back since then.
if shortFull then shortFloor = newest end
if longFull then longFloor = newest end
local scope, blockMs = 'temp', shortBlockMs * factor ^ shortStrikes
if longFull then
  scope, blockMs = 'long', longBlockMs * factor ^ longStrikes
  longStrikes = longStrikes + 1
else
  shortStrikes = shortStrikes + 1
end
blockMs = math.floor(math.min(maxBlockMs, blockMs))
blockValue = scope .. ' ' .. shortCount .. ' ' .. longCount .. ' ' .. blockMs
local set = redis.pcall('SET', block, blockValue, 'PX', blockMs)
if set.err then
  ${indent(failWith('set'), 2)}
end
call('SET', penalties, ${formatPenalties('forgiven')}, 'PX', penaltiesTtlMs + blockMs)
return blockMs .. ' ' .. blockValue`;

/** The reply to a call that is allowed, with the time until the short window is empty: exact if this call was counted, otherwise an upper bound. */
export const ALLOWED = `(shortCount > 0 and shortWindowMs or 0) .. ' ok ' .. shortCount .. ' ' .. longCount`;
