import type { LimitRules } from './limit.policy.js';

// Lua that several scripts of the limiter share. Fragments rather than Lua functions: a function costs its making in
// every run of a script. `call` is a local of each script: `redis.call` is looked up twice.

/** A fragment's lines as deep as the place where it stands. */
export function indent(lua: string, by: number): string {
  return lua.trim().replaceAll('\n', `\n${' '.repeat(by)}`);
}

/** `nowMs` by the server's clock, asked once for all limits of a call. */
export const NOW_MS_ONCE = `
if not nowMs then
  local time = call('TIME')
  nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
end`;

/**
 * Returns `answer` if a block stands: `held` is its value, `remainingMs` what is left of it. Of one that lost its TTL
 * that is the whole of it, and `heal` is what is to be done.
 */
export const answerBlock = (answer: string, ...heal: string[]): string => `
if held then
  local remainingMs = call('PTTL', block)
  if remainingMs < 0 then
    ${[
      `remainingMs = tonumber(string.match(held, '^%a+ %d+ %d+ (%d+)'))`,
      `if not remainingMs then error('SYNCGUARD_FOREIGN the block is not a block', 0) end`,
      ...heal,
    ].join('\n    ')}
  end
  if remainingMs > 0 then return ${answer} end
end`;

/** The rules, in the order in which the Lua functions take them. */
export const RULES = [
  'tempWindowMs',
  'tempThreshold',
  'tempBlockMs',
  'longWindowMs',
  'longThreshold',
  'longBlockMs',
  'factor',
  'maxBlockMs',
  'recordTtlMs',
] as const satisfies readonly (keyof LimitRules)[];

/** `floor` and `strikes` of both tiers, and the last forgiven call, out of `record`. */
export const PARSE_RECORD = `
local tempFloor, longFloor, tempStrikes, longStrikes, forgiven = 0, 0, 0, 0, ''
if record then
  tempFloor, longFloor, tempStrikes, longStrikes, forgiven =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) ([%w_-]*)$')
  if not tempFloor then error('SYNCGUARD_FOREIGN the record is not of strikes', 0) end
  tempFloor, longFloor = tonumber(tempFloor), tonumber(longFloor)
end`;

export const formatRecord = (forgiven: string): string =>
  `string.format('%.0f %.0f %.0f %.0f %s', tempFloor, longFloor, tempStrikes, longStrikes, ${forgiven})`;

/** Attempts after these instants count: (now - window, now], and open at the end, for a clock that stepped back. */
export const WINDOW_STARTS = `
local tempFrom = nowMs - tempWindowMs
if tempFloor > tempFrom then tempFrom = tempFloor end
local longFrom = tempFrom
if longThreshold > 0 then
  longFrom = nowMs - longWindowMs
  if longFloor > longFrom then longFrom = longFloor end
end`;

/** A limit without a block: until so many of the oldest attempts have left the window that the call fits. */
export const WAIT_FOR_ROOM = `
local excess = shortCount + cost - tempThreshold + 1
local oldest = call('ZRANGEBYSCORE', attempts, '(' .. tempFrom, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1)
-- No longer than the window, also where the clock stepped back and attempts lie in its future.
local waitMs = math.min(oldest[2] - nowMs, 0) + tempWindowMs`;

/**
 * Removes what is older than all windows. The first command changes nothing, but needs memory as what may be written
 * later: a full server refuses it. A script that has removed something first is let through, and would go on growing.
 */
export const PRUNE = `
call('ZADD', attempts, 'XX', 0, '')
call('ZREMRANGEBYSCORE', attempts, isAttempt and '-inf' or 0, from)`;

/** The block that full tiers set: `tempFull` and `longFull` say which. Sets `held` and `blockMs`. */
export const SET_BLOCK = `
-- A block serves every window that is full, up to the newest attempt: also one from before the clock stepped back.
local newest = tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2])
if tempFull then tempFloor = newest end
if longFull then longFloor = newest end
local scope, blockMs = 'temp', tempBlockMs * factor ^ tempStrikes
if longFull then
  scope, blockMs = 'long', longBlockMs * factor ^ longStrikes
  longStrikes = longStrikes + 1
else
  tempStrikes = tempStrikes + 1
end
blockMs = math.floor(math.min(maxBlockMs, blockMs))
held = scope .. ' ' .. shortCount .. ' ' .. longCount .. ' ' .. blockMs
call('SET', block, held, 'PX', blockMs)
call('SET', seq, ${formatRecord('forgiven')}, 'PX', recordTtlMs + blockMs)`;
