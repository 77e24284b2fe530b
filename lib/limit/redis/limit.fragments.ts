import { takeApart } from '../../script/fragments.js';
import { CALL_ID_LENGTH } from '../limit.backend.js';
import { IN_FLIGHT_MS } from '../limit.times.js';

/** Where the route begins in the id of a call: see `createCallId`. */
export const ROUTE_AT = CALL_ID_LENGTH + 1;

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

/** The reply to a call that is not counted. A limit of 0 denies it. */
export const UNCOUNTED = `return shortThreshold == 0 and shortWindowMs .. ' window 0 0' or '0 ok 0 0'`;

const PENALTIES = {
  shortFloor: '%d+',
  longFloor: '%d+',
  shortStrikes: '%d+',
  longStrikes: '%d+',
  forgiven: '[%w_-]*',
  struckBy: '[%w_*-]*',
};

type Penalty = keyof typeof PENALTIES;

const TEXTS: ReadonlySet<Penalty> = new Set(['forgiven', 'struckBy']);

export const FLOORS = ['shortFloor', 'longFloor'] as const satisfies Penalty[];
export const ALL_PENALTIES = Object.keys(PENALTIES) as Penalty[];

/** Sets locals to fields of `penaltiesValue`. check.script.ts says what they mean. A script that only counts needs FLOORS. */
export const parsePenalties = (names: readonly Penalty[]): string => /* lua */ `
-- Reads: penaltiesValue.
-- Sets: ${names.join(', ')}.
local ${names.join(', ')} = ${names.map((name) => (TEXTS.has(name) ? "''" : 0)).join(', ')}
if penaltiesValue then
  ${indent(takeApart('penaltiesValue', PENALTIES, names), 2)}
  if not shortFloor then error('SYNCGUARD_FOREIGN the penalties are not ours', 0) end
  shortFloor, longFloor = tonumber(shortFloor), tonumber(longFloor)
end`;

export const formatPenalties = (by: string): string =>
  `string.format('%.0f %.0f %.0f %.0f %s %s',\n  shortFloor, longFloor, shortStrikes, longStrikes, ${by}, struckBy)`;

/** A tier of a policy, as the names of its numbers begin: `shortWindowMs`, `longCount`. */
export type TierName = 'short' | 'long';
export type Tiers = readonly TierName[];
export const TIERS: Tiers = ['short', 'long'];

/** Lua of each tier, one below the other. */
const ofEach = (tiers: Tiers, lua: (tier: TierName) => string): string => tiers.map(lua).join('\n');

export const READ_STATE = /* lua */ `
-- Reads: call, block, penalties.
-- Sets: state, blockValue, penaltiesValue.
local state = call('MGET', block, penalties)
local blockValue, penaltiesValue = state[1], state[2]`;

export const DENY_IF_BLOCKED = /* lua */ `
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
export const readPenalties = (tiers: Tiers, names: readonly Penalty[]): string => /* lua */ `
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

export const openLog = (tiers: Tiers, names: readonly Penalty[]): string =>
  `${READ_STATE}${DENY_IF_BLOCKED}${readPenalties(tiers, names)}`;

/** When a call counts. It comes after what has set a block, so that it counts for the next one. */
export const COUNTED_AT = 'penaltiesValue and math.max(nowMs, shortFloor + 1, longFloor + 1) or nowMs';

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
export const countAttempts = (tiers: Tiers, flights?: Record<'read' | 'lapse' | 'tidy', string>): string => {
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
export const countWithFlights = (tiers: Tiers, before = ''): string =>
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

export const fullTiers = (tiers: Tiers, cost: string): string =>
  ofEach(tiers, (tier) => `local ${tier}Full = ${tier}Count + ${cost} >= ${tier}Threshold`);

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
end`;

/** Keeps the log for as long as it may be needed. */
export const KEEP = /* lua */ `
-- Reads: attempts, keepMs, callId, cost, call.
-- Sets: ends.
local ends = redis.pcall('PEXPIRE', attempts, keepMs)
if type(ends) == 'table' then
  ${indent(failWith('ends'), 2)}
end`;

/** Returns how long a call waits until enough of the oldest attempts have left a window. 0 if as much `more` fits now. */
export const WAIT_FOR_ROOM = /* lua */ `
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
export const CHECK_BLOCK_KEYS = /* lua */ `
-- Reads: call, block, penalties.
call('GET', block)
call('GET', penalties)`;

/** The time of the newest attempt. */
export const NEWEST = `tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] or 0)`;

/** Denies the call by a new block of the tiers that are full, and writes its penalties. */
export const setBlock = (tiers: Tiers): string => /* lua */ `
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
export const countsOf = (tiers: Tiers): string => `shortCount .. ' ' .. ${tiers.at(-1) ?? 'short'}Count`;

/** The reply to a call that is allowed, with the time until the short window is empty: exact if this call was counted, otherwise an upper bound. */
export const allowed = (tiers: Tiers): string =>
  `(shortCount > 0 and shortWindowMs or 0) .. ' ok ' .. ${countsOf(tiers)}`;
