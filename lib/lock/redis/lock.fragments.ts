import { TIME_TOLERANCE_MS } from '../../core/clock.js';
import { FENCE_THRESHOLDS } from '../lock.record.js';
import { type KeyName, numbered } from './lock.layout.js';
import { defineScript, type Script, type ScriptDefinition } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/**
 * Defines a script for each number of the user's keys (law 6 of docs/scripts.md), which its Lua finds as COUNT. All of its
 * KEYS but `index`, and its argument `keyJson`, are there once for each of the user's keys.
 */
export function defineLockScript<const Arg extends string, Reply>(
  definition: Omit<ScriptDefinition<KeyName, Arg, Reply>, 'keys'>,
): (count: number) => Script<KeyName, Arg, Reply> {
  const { name, args, lua } = definition;
  const byCount: Script<KeyName, Arg, Reply>[] = [];
  const define = (count: number): Script<KeyName, Arg, Reply> => {
    const each = <Name extends string>(one: Name): Name[] =>
      Array.from({ length: count }, (_, i) => numbered(one, i) as Name);
    const ofCount = {
      ...definition,
      name: numbered(name, count - 1),
      keys: [...each('fenceCounter'), ...each('record'), ...each('queue'), 'index'] as const,
      args: args.flatMap((arg) => (arg === 'keyJson' ? each(arg) : arg)),
      lua: /* lua */ `local COUNT = ${count}\n${lua}`,
    };
    return defineScript(ofCount);
  };
  return (count) => (byCount[count] ??= define(count));
}

/** The Lua function `extended(json)` returns a record with its new expiry. */
export const EXTENDING = /* lua */ `
-- Reads: nowMs, ttlMs, decode, isQueuedFor.
-- Sets: expiresAtMs, extended.
local expiresAtMs = nowMs + ttlMs
local function extended(json)
  local new, found = string.gsub(json, '"expiresAtMs":%d+([,}])', string.format('"expiresAtMs":%d%%1', expiresAtMs), 1)
  if found == 1 then return new end
  local fields = decode(json)
  fields.expiresAtMs = expiresAtMs
  return cjson.encode(fields) .. (isQueuedFor(json) and ' ' or '')
end`;

// A record is `{"lockId":"...","expiresAtMs":n,"acquiredAtMs":n,"key":"...","fence":"..."}` (docs/wire-format.md). Our
// records have their fields in this order without spaces. Records of other programs may differ. JSON escapes a quote
// inside a user's key, so a search for `"lockId":"` or `"expiresAtMs":` finds a field and never a part of a key.
//
// White space may follow the record, and leaves it valid JSON. A tab marks a claim: the lock was handed over, and its
// new owner has not taken it yet. A space at the very end says that the lock has a queue. So the release of a lock
// without waiters reads no queue.
export const OWNERSHIP = /* lua */ `
-- Sets: decode, owns.
local function decode(json)
  local ok, fields = pcall(cjson.decode, json)
  return ok and type(fields) == 'table' and fields or {}
end

local function owns(json, id)
  if string.sub(json, 1, 11) == '{"lockId":"' then return string.sub(json, 12, 33) == id end
  return decode(json).lockId == id
end`;

export const QUEUED = /* lua */ `
-- Sets: isQueuedFor.
local function isQueuedFor(json) return string.byte(json, -1) == 32 end`;

export const EXPIRY = /* lua */ `
-- Reads: decode.
-- Sets: expiryOf.
local function expiryOf(json)
  return tonumber(string.match(json, '"expiresAtMs":(%d+)[,}]') or decode(json).expiresAtMs)
end`;

export const LIVENESS = /* lua */ `
-- Reads: decode.
-- Sets: time, nowMs, expiryOf, isDead.${NOW_MS}${EXPIRY}
local function isDead(json)
  local expiry = expiryOf(json)
  return not expiry or expiry <= nowMs - ${TIME_TOLERANCE_MS}
end`;

export const FENCE_MAX = Number(FENCE_THRESHOLDS.MAX);

/**
 * Lua that reads `fence`, the next one, and `last`, the last one that a counter has given: to this key, or to another one that
 * shares it (`slottedLayout`). So a counter is never set to less than that. A counter that was lost starts again from the
 * clock, which is ahead of every fence that the counter has given. The clock is read in tenths of a ms, so that two
 * primaries after a split rarely give the same fence in the same ms.
 */
export const nextFence = (counter: string): string => /* lua */ `\
  local text = redis.call('GET', ${counter}) or '0'
  if not string.find(text, '^%d+$') then error('SYNCGUARD_FOREIGN the fence is not a counter', 0) end
  local last = tonumber(text)
  local fence = math.max(last + 1, time[1] * 10000 + math.floor(time[2] / 100))`;

/** A Lua expression: a record as JSON. It is given the user's key as JSON. */
export const recordOf = (json: string, id: string, lifeMs: string, fence: string, rest = "''"): string =>
  `string.format('{"lockId":"%s","expiresAtMs":%d,"acquiredAtMs":%d,"key":%s,"fence":"%015d"%s}',
    ${id}, nowMs + ${lifeMs}, nowMs, ${json}, ${fence}, ${rest})`;

/** The Lua functions `fenceAfter(counter)` and `recordOf(...)`, where a script needs them more than once. */
export const GRANTING = /* lua */ `
-- Reads: time, nowMs.
-- Sets: fenceAfter, recordOf.
local function fenceAfter(counter)${nextFence('counter')}
  return fence, last
end

local function recordOf(json, id, lifeMs, fenceOfKey, rest)
  return ${recordOf('json', 'id', 'lifeMs', 'fenceOfKey', 'rest')}
end`;
