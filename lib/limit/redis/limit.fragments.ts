import { takeApart } from '../../script/fragments.js';
import type { LimitRules } from '../limit.backend.js';

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

/**
 * Ends the Lua function with `reply` if there is a block. Expects the value of the block in `blockValue`. Sets `remainingMs`
 * to the time until the block ends. If the block has lost its TTL, it starts again in full, and the commands of `heal` run.
 */
export const denyIfBlocked = (reply: string, ...heal: string[]): string => /* lua */ `
if blockValue then
  local remainingMs = call('PTTL', block)
  if remainingMs < 0 then
    ${[
      `remainingMs = tonumber(string.match(blockValue, '^%a+ %d+ %d+ (%d+)'))`,
      `if not remainingMs then error('SYNCGUARD_FOREIGN the block is not ours', 0) end`,
      ...heal,
    ].join('\n    ')}
  end
  if remainingMs > 0 then return ${reply} end
end`;

/** The names of the rules, in the order of the parameters of the Lua functions. */
export const RULES = [
  'shortWindowMs',
  'shortThreshold',
  'shortBlockMs',
  'longWindowMs',
  'longThreshold',
  'longBlockMs',
  'factor',
  'maxBlockMs',
  'penaltiesTtlMs',
] as const satisfies readonly (keyof LimitRules)[];

const PENALTIES = {
  shortFloor: '%d+',
  longFloor: '%d+',
  shortStrikes: '%d+',
  longStrikes: '%d+',
  forgiven: '[%w_-]*',
};

/**
 * Sets locals to fields of `penaltiesValue`. Attempts up to `shortFloor` or `longFloor` (instants in ms) no longer count
 * in that tier. `shortStrikes` and `longStrikes` are how many blocks each tier has set. `forgiven` is the id of the call
 * that forgave last.
 */
export const parsePenalties = (...names: (keyof typeof PENALTIES)[]): string => /* lua */ `
-- Reads: penaltiesValue.
-- Sets: ${names.join(', ')}.
local ${names.join(', ')} = ${names.map((name) => (name === 'forgiven' ? "''" : 0)).join(', ')}
if penaltiesValue then
  ${indent(takeApart('penaltiesValue', PENALTIES, names), 2)}
  if not shortFloor then error('SYNCGUARD_FOREIGN the penalties are not ours', 0) end
  shortFloor, longFloor = tonumber(shortFloor), tonumber(longFloor)
end`;

/** Reads all of the penalties, for scripts that write them. */
export const PARSE_PENALTIES = parsePenalties(
  'shortFloor',
  'longFloor',
  'shortStrikes',
  'longStrikes',
  'forgiven',
);

export const formatPenalties = (by: string): string =>
  `string.format('%.0f %.0f %.0f %.0f %s',\n  shortFloor, longFloor, shortStrikes, longStrikes, ${by})`;

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

/**
 * For a limit without a block. Sets `waitMs` to the time after which enough of the oldest attempts have left the window
 * for the call to fit.
 */
export const WAIT_FOR_ROOM = /* lua */ `
-- Reads: shortCount, cost, shortThreshold, call, attempts, shortFrom, nowMs, shortWindowMs.
-- Sets: excess, oldest, waitMs.
local excess = shortCount + cost - shortThreshold + 1
local oldest = call('ZRANGEBYSCORE', attempts, '(' .. shortFrom, '+inf',
  'WITHSCORES', 'LIMIT', excess - 1, 1)
-- If the clock stepped back, attempts lie in the future. The wait is still no longer than the window.
local waitMs = math.min(oldest[2] - nowMs, 0) + shortWindowMs`;

/**
 * Removes the attempts that are older than all windows. The first command changes nothing, but a server whose memory is
 * full refuses it. A server checks a script at its first write only. So after a removal as first write, it would let the
 * script add to the full memory.
 */
export const PRUNE = /* lua */ `
-- Reads: call, attempts, isAttempt, from.
call('ZADD', attempts, 'XX', 0, '')
call('ZREMRANGEBYSCORE', attempts, isAttempt and '-inf' or 0, from)`;

/** Starts a short or a long block: writes the block of the tiers that are full (`shortFull`, `longFull`), and its penalties. Sets `blockValue` and `blockMs`. */
export const SET_BLOCK = /* lua */ `
-- Reads: call, attempts, shortFull, longFull, shortBlockMs, factor, longBlockMs, maxBlockMs, shortCount,
--   longCount, block, penalties, forgiven, penaltiesTtlMs.
-- Changes: shortFloor, longFloor, longStrikes, shortStrikes, blockValue.
-- Sets: newest, scope, blockMs.
-- Every window that is full starts again after its newest attempt, even if the clock has stepped back since then.
local newest = tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2])
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
call('SET', block, blockValue, 'PX', blockMs)
call('SET', penalties, ${formatPenalties('forgiven')}, 'PX', penaltiesTtlMs + blockMs)`;
