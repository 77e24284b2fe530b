import { IN_FLIGHT_MS, BUSY_RETRY_MS } from '../limit.times.js';
import {
  ALL_PENALTIES,
  denyIfBlocked,
  FLOORS,
  formatPenalties,
  heal,
  indent,
  NOW_MS_ONCE,
  parsePenalties,
  type Penalty,
  ROUTE_AT,
  type TierName,
  type Tiers,
} from './limit.fragments.js';

// The Lua of each decider has what the policy's tiers need, one or two. redis/check.script.ts names the numbers that it finds.

/** Lua of each tier, one below the other. */
const ofEach = (tiers: Tiers, lua: (tier: TierName) => string): string => tiers.map(lua).join('\n');

const READ_STATE = /* lua */ `
-- Reads: call, block, penalties.
-- Sets: state, blockValue, penaltiesValue.
local state = call('MGET', block, penalties)
local blockValue, penaltiesValue = state[1], state[2]`;

const DENY_IF_BLOCKED = /* lua */ `
-- Reads: blockValue, call, block, commit, attempts, keepMs, penalties, penaltiesTtlMs.${denyIfBlocked(
  heal('attempts', 'keepMs'),
  heal('penalties', 'penaltiesTtlMs + remainingMs'),
)}`;

/**
 * If the clock has stepped back behind a floor: what lies ahead of the clock has happened now, in the order in which it
 * happened. So it leaves its window a window from now, and not when the clock has caught up.
 */
const STEP_BACK = /* lua */ `
-- Reads: commit, nowMs, call, block, attempts, penalties, penaltiesValue.
-- Changes: shortFloor, longFloor.
if commit and (shortFloor > nowMs or longFloor > nowMs) then
  call('GET', block)
  local lower, upper = math.min(shortFloor, longFloor), math.max(shortFloor, longFloor)
  local function now(atMs) return nowMs - (atMs <= lower and 2 or atMs <= upper and 1 or 0) end
  local ahead = call('ZRANGEBYSCORE', attempts, nowMs - 2, '+inf', 'WITHSCORES')
  for i = 1, #ahead, 2 do call('ZADD', attempts, now(tonumber(ahead[i + 1])), ahead[i]) end
  if shortFloor > nowMs - 3 then shortFloor = now(shortFloor) end
  if longFloor > nowMs - 3 then longFloor = now(longFloor) end
  local floors = string.format('%.0f %.0f', shortFloor, longFloor)
  call('SET', penalties, string.gsub(penaltiesValue, '^%d+ %d+', floors), 'KEEPTTL')
end`;

/**
 * Sets the penalties, and where each window starts: attempts after `shortFrom` count for the short tier. A window has no upper
 * end, so that no attempt is lost when the clock steps back.
 */
const readPenalties = (tiers: Tiers, names: readonly Penalty[]): string => /* lua */ `
${NOW_MS_ONCE}
${parsePenalties(names)}
${ofEach(tiers, (tier) => `local ${tier}From = nowMs - ${tier}WindowMs`)}
if penaltiesValue then
  ${indent(heal('penalties', 'penaltiesTtlMs'), 2)}
  ${indent(STEP_BACK, 2)}
  ${indent(
    ofEach(tiers, (tier) => `${tier}From = math.max(${tier}From, ${tier}Floor)`),
    2,
  )}
end`;

const openLog = (tiers: Tiers, names: readonly Penalty[]): string =>
  `${READ_STATE}${DENY_IF_BLOCKED}${readPenalties(tiers, names)}`;

/** When a call counts. It comes after what has set a block, so that it counts for the next one. */
const COUNTED_AT = 'penaltiesValue and math.max(nowMs, shortFloor + 1, longFloor + 1) or nowMs';

/**
 * A call in flight has a negative score: when it was renewed. Of one that was renewed, the member `callId:0` has the time of
 * its beginning, as a negative number below all others: `BEGAN` is taken from it.
 */
export const BEGAN = 1e15;

/**
 * Sets `shortCount` and `longCount`, and removes what is older than all windows. An attempt ahead of the clock, which has
 * stepped back, counts as one of now.
 *
 * The first command of a removal changes nothing, but a server whose memory is full refuses it. A server checks a script
 * at its first write only. So after a removal as first write, it would let the script add to the full memory.
 *
 * @param flights - the parts that a limit with calls in flight has besides
 */
const countAttempts = (tiers: Tiers, flights?: Record<'read' | 'lapse' | 'tidy', string>): string => {
  const taken = flights ? ' + inFlight' : '';
  return /* lua */ `
local latest = ${COUNTED_AT}
local from = ${tiers.length === 1 ? 'shortFrom' : 'shortFrom < longFrom and shortFrom or longFrom'}
${flights?.read ?? ''}
local shortCount, size = call('ZCOUNT', attempts, from + 1, latest), call('ZCARD', attempts)
if size > shortCount${taken} then
  call('ZADD', attempts, 'XX', 0, '')
  ${indent(flights?.lapse ?? '', 2)}
  size = size - call('ZREMRANGEBYSCORE', attempts, ${flights ? '0' : `'-inf'`}, from)
  if ${flights ? '#lapsed > 0 or ' : ''}size > shortCount${taken} then
    local ahead = commit and call('ZRANGEBYSCORE', attempts, latest + 1, '+inf') or {}
    for i = 1, #ahead do call('ZADD', attempts, latest, ahead[i]) end
    ${indent(flights?.tidy ?? '', 4)}
    shortCount = call('ZCOUNT', attempts, from + 1, '+inf')
  end
end
${
  tiers.length === 1
    ? ''
    : `local longCount = shortCount
if shortFrom > from then shortCount = call('ZCOUNT', attempts, shortFrom + 1, '+inf') end
if longFrom > from then longCount = call('ZCOUNT', attempts, longFrom + 1, '+inf') end`
}`;
};

/**
 * Counts the attempts of a limit that has calls in flight. A flight that nobody has renewed for so long has lapsed: its
 * process is dead, and the call counts from where its flight began. A flight ahead of the clock begins now.
 *
 * @param before - runs before anything is removed
 */
const countWithFlights = (tiers: Tiers, before = ''): string =>
  countAttempts(tiers, {
    // Sets `inFlight`.
    read: `local flightFrom = ${IN_FLIGHT_MS} - nowMs
local inFlight = call('ZCOUNT', attempts, '(${-BEGAN}', '(' .. flightFrom)
if commit and inFlight > 0 then
  local ahead = call('ZRANGEBYSCORE', attempts, '-inf', '(' .. -nowMs, 'WITHSCORES')
  for i = 1, #ahead, 2 do
    local score = tonumber(ahead[i + 1])
    local began = score <= ${-BEGAN} and ${BEGAN} or 0
    if score + began < -nowMs then call('ZADD', attempts, -nowMs - began, ahead[i]) end
  end
end`,
    // Makes attempts of the calls whose flight has lapsed.
    lapse: `${before}
local lapsed = call('ZRANGEBYSCORE', attempts, flightFrom, '(0', 'WITHSCORES')
for i = 1, #lapsed, 2 do
  local began = call('ZSCORE', attempts, string.match(lapsed[i], '^[^:]*') .. ':0')
  call('ZADD', attempts, began and ${-BEGAN} - began or -lapsed[i + 1], lapsed[i])
end`,
    // The beginnings of flights that have ended.
    tidy: `local begins = call('ZRANGEBYSCORE', attempts, '-inf', '${-BEGAN}')
for i = 1, #begins do
  local score = call('ZSCORE', attempts, string.sub(begins[i], 1, -3))
  if not score or tonumber(score) >= 0 then call('ZREM', attempts, begins[i]) end
end`,
  });

const fullTiers = (tiers: Tiers, cost: string): string =>
  ofEach(tiers, (tier) => `local ${tier}Full = ${tier}Count + ${cost} >= ${tier}Threshold`);

/** The score of the call, if it is in the set: it is in flight, or the Redis client has sent the command twice. */
const SCORE = `tonumber(call('ZSCORE', attempts, callId) or nil)`;

/** Takes back what the call has added, and fails with what an ACL has refused. */
const failWith = (refusal: string): string => /* lua */ `
local ids = {callId}
for i = 2, cost do ids[i] = callId .. ':' .. i end
call('ZREM', attempts, unpack(ids))
error(${refusal}.err, 0)`;

/** Adds the call. ZADD comes first, because a full server refuses it there. */
const addCall = (option: string, score: string, added = ''): string => /* lua */ `
if cost == 1 then
  ${added}call('ZADD', attempts, '${option}', ${score}, callId)
else
  local members = {${score}, callId}
  for i = 2, cost do
    members[2 * i - 1] = ${score}
    members[2 * i] = callId .. ':' .. i
  end
  ${added}call('ZADD', attempts, '${option}', unpack(members))
end`;

/** Keeps the log for as long as it may be needed. */
const KEEP = /* lua */ `
-- Reads: attempts, keepMs, callId, cost, call.
-- Sets: ends.
local ends = redis.pcall('PEXPIRE', attempts, keepMs)
if type(ends) == 'table' then
  ${indent(failWith('ends'), 2)}
end`;

/** Returns how long a call waits until enough of the oldest attempts have left a window. 0 if as much `more` fits now. */
const WAIT_FOR_ROOM = /* lua */ `
-- Reads: call, attempts, nowMs.
-- Sets: waitForRoom.
local function waitForRoom(more, count, threshold, windowFrom, windowMs)
  local excess = count + more - threshold + 1
  -- More than the tier holds never fits, so there is no time to wait for.
  if excess < 1 or excess > count then return 0 end
  local oldest = call('ZRANGEBYSCORE', attempts, windowFrom + 1, '+inf',
    'WITHSCORES', 'LIMIT', excess - 1, 1)
  -- If the clock stepped back, attempts lie in the future. The wait is still no longer than the window.
  return math.min(oldest[2] - nowMs, 0) + windowMs
end`;

/** Before the first write of any limit: it must fail if these keys hold another type. */
const CHECK_BLOCK_KEYS = /* lua */ `
-- Reads: call, block, penalties.
call('GET', block)
call('GET', penalties)`;

/** The time of the newest attempt. */
const NEWEST = `tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] or 0)`;

/** Denies the call by a new block of the tiers that are full, and writes its penalties. */
const setBlock = (tiers: Tiers): string => /* lua */ `
-- Every window that is full starts again after its newest attempt, even if the clock has stepped back since then.
${ofEach(tiers, (tier) => `if ${tier}Full then ${tier}Floor = newest end`)}
local route = string.sub(callId, ${ROUTE_AT})
if shortStrikes + longStrikes == 0 then struckBy = route elseif struckBy ~= route then struckBy = '*' end
local scope, blockMs
${tiers
  .toReversed()
  .map(
    (tier) => `if ${tier}Full then
  scope, blockMs, ${tier}Strikes =
    '${SCOPES[tier]}', ${tier}BlockMs * factor ^ ${tier}Strikes, ${tier}Strikes + 1
`,
  )
  .join('else')}end
blockMs = math.floor(math.min(maxBlockMs, blockMs))
blockValue = scope .. ' ' .. ${countsOf(tiers)} .. ' ' .. blockMs
local set = redis.pcall('SET', block, blockValue, 'PX', blockMs)
if set.err then
  ${indent(failWith('set'), 2)}
end
call('SET', penalties, ${formatPenalties('forgiven')}, 'PX', penaltiesTtlMs + blockMs)
return blockMs .. ' ' .. blockValue`;

const SCOPES = { short: 'temp', long: 'long' } as const;

/** Both counts of a reply. Without a long tier they are the same. */
const countsOf = (tiers: Tiers): string => `shortCount .. ' ' .. ${tiers.at(-1) ?? 'short'}Count`;

/** The reply to a call that is allowed, with the time until the short window is empty: exact if this call was counted, otherwise an upper bound. */
const allowed = (tiers: Tiers): string =>
  `(shortCount > 0 and shortWindowMs or 0) .. ' ok ' .. ${countsOf(tiers)}`;

const waitFor = (needed: string, tier: TierName): string =>
  `waitForRoom(${needed}, ${tier}Count, ${tier}Threshold, ${tier}From, ${tier}WindowMs)`;

/** Denies a call under a limit without a block, until enough of the oldest attempts leave the window for it to fit. */
const denyUntilRoom = (tiers: Tiers): string => /* lua */ `
${heal('attempts', 'keepMs')}
${WAIT_FOR_ROOM}
return ${waitFor('cost', 'short')}
  .. ' window ' .. ${countsOf(tiers)}`;

const anyFull = (tiers: Tiers): string => tiers.map((tier) => `${tier}Full`).join(' or ');

/** Counts a call, and sets a block if the call fills a tier. A call that is counted already does neither. */
export const attempt = (tiers: Tiers): string => /* lua */ `${openLog(tiers, ALL_PENALTIES)}
${countAttempts(tiers)}
${fullTiers(tiers, 'cost')}
local blocks, newest = ${anyFull(tiers)}, latest
if blocks then
  if ${SCORE} then
    return ${allowed(tiers)}
  end
  if shortBlockMs == 0 then
    ${indent(denyUntilRoom(tiers), 4)}
  end
  ${indent(CHECK_BLOCK_KEYS, 2)}
  if not commit then return '1 temp' end
  newest = math.max(newest, ${NEWEST})
end
if commit then
  local keptMs = size > 0 and call('PTTL', attempts) or 0
  local added
  ${indent(addCall('NX', 'latest', 'added = '), 2)}
  -- To look costs less than to write. Half of the slack may be used up.
  if keptMs < renewMs then
    ${indent(KEEP, 4)}
  end
  shortCount = shortCount + added
  ${tiers.length === 1 ? '' : 'longCount = longCount + added'}
end
if not blocks then
  return ${allowed(tiers)}
end
${setBlock(tiers)}`;

/** Keeps a call as in flight, if there is room for it beside the calls that count and those in flight. */
const enterWith =
  (needed: string) =>
  (tiers: Tiers): string => /* lua */ `${openLog(tiers, FLOORS)}
local known
${countWithFlights(tiers, `known = ${SCORE}`)}
local needed = ${needed}
local taken = inFlight + needed
local busy = ${tiers.map((tier) => `${tier}Count + taken >= ${tier}Threshold`).join(' or ')}
-- To add a call that is known changes nothing.
if known or busy and ${SCORE} then
  return ${allowed(tiers)}
end
if busy then
  ${indent(heal('attempts', 'keepMs'), 2)}
  ${indent(WAIT_FOR_ROOM, 2)}
  local waitMs = math.max(0,
    ${tiers.map((tier) => waitFor('needed', tier)).join(',\n    ')})
  return (waitMs > 0 and waitMs .. ' window ' or '${BUSY_RETRY_MS} busy ') .. ${countsOf(tiers)}
end
if commit then
  ${indent(addCall('NX', '-nowMs'), 2)}
  ${indent(KEEP, 2)}
end
return ${allowed(tiers)}`;

/**
 * Lets a call in that may become a failure. With a block, the call that would fill a tier may enter: if it fails, it sets the
 * block. Without one it needs room.
 */
export const enter = enterWith('shortBlockMs == 0 and cost or 0');

/**
 * Keeps room for a call that may succeed. A success that has happened cannot be denied any more. So the call takes up room
 * from the start, and counts unless it is withdrawn.
 */
export const reserve = enterWith('cost');

/** Counts a call in flight, even while there is a block. */
const countFlight = (
  tiers: Tiers,
  penalties: Parameters<typeof readPenalties>[1],
): string => /* lua */ `${READ_STATE}
${readPenalties(tiers, penalties)}
if (${SCORE} or -1) < 0 then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  local score = ${COUNTED_AT}
  ${indent(addCall('CH', 'score'), 2)}
  ${indent(KEEP, 2)}
end
${DENY_IF_BLOCKED}
${countWithFlights(tiers)}`;

/** Counts a call in flight. It sets the block if a tier is full when `next` more would come. */
const settleWith =
  (next: string) =>
  (tiers: Tiers): string => /* lua */ `${countFlight(tiers, ALL_PENALTIES)}
${fullTiers(tiers, next)}
if shortBlockMs == 0 or not (${anyFull(tiers)}) then
  return ${allowed(tiers)}
end
${CHECK_BLOCK_KEYS}
${heal('attempts', 'keepMs')}
local newest = ${NEWEST}
${setBlock(tiers)}`;

/** Counts a call in flight as a failure. The failure that fills a tier is denied itself. */
export const confirm = settleWith('0');

/** Counts a call in flight as a success. The success that fills a tier sets the block, and is answered as it is. */
export const grant = settleWith('1');

/** Counts a call in flight, and never sets a block. */
export const fill = (tiers: Tiers): string => /* lua */ `${countFlight(tiers, FLOORS)}
return ${allowed(tiers)}`;

/** Decides as a call would be decided, and writes nothing. The time until the window is empty is exact. */
export const peek = (tiers: Tiers): string => /* lua */ `${CHECK_BLOCK_KEYS}
${openLog(tiers, FLOORS)}
${tiers.map((tier) => `local ${tier}Count = call('ZCOUNT', attempts, ${tier}From + 1, '+inf')`).join('\n')}
if shortBlockMs == 0 and shortCount + cost >= shortThreshold then
  ${indent(denyUntilRoom(tiers), 2)}
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + shortWindowMs
end
local known = penaltiesValue or call('ZCARD', attempts) > 0
return resetMs .. (known and ' ok ' or ' unknown ') .. ${countsOf(tiers)}`;
