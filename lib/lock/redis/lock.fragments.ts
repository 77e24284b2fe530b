import { TIME_TOLERANCE_MS } from '../../core/clock.js';
import { CLAIM_MS } from '../lock.times.js';
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

/** A queue expires when no attempt has entered it for this time, in ms. */
const QUEUE_MS = 60_000;

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
  if string.find(json, '"lockId":"' .. id .. '"', 1, true) then return true end
  return string.sub(json, 1, 11) ~= '{"lockId":"' and decode(json).lockId == id
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

/**
 * The Lua function `fenceOf(i)` returns the next fence of a key. A counter that was lost starts again from the clock,
 * which is ahead of every fence that the counter has given. The clock is read in tenths of a ms, so that two primaries
 * after a split rarely give the same fence in the same ms. `recordOf(...)` returns a record as JSON.
 *
 * A script reads its keys by number. KEYS are COUNT fence counters, then COUNT records, then COUNT queues. The
 * last of ARGV are the user's keys as JSON. The i-th of each belong together.
 */
export const GRANTING = /* lua */ `
-- Reads: time, nowMs, COUNT.
-- Sets: FENCE_MAX, fenceOf, recordOf.
local FENCE_MAX = ${Number(FENCE_THRESHOLDS.MAX)}
local function fenceOf(i)
  local last = redis.call('GET', KEYS[i]) or '0'
  if not string.find(last, '^%d+$') then error('SYNCGUARD_FOREIGN the fence is not a counter', 0) end
  return math.max(tonumber(last) + 1, time[1] * 10000 + math.floor(time[2] / 100))
end

local function recordOf(i, id, lifeMs, fenceOfKey, rest)
  return string.format('{"lockId":"%s","expiresAtMs":%d,"acquiredAtMs":%d,"key":%s,"fence":"%015d"%s}',
    id, nowMs + lifeMs, nowMs, ARGV[#ARGV - COUNT + i], fenceOfKey, rest)
end`;

/**
 * The Lua function `handOver(i, nextFence)` makes the head of a queue the owner for the time of a claim, and publishes
 * this to its process. `nextFence` is what `fenceOf(i)` has returned before the first write. It returns the head and the
 * claim, or nothing if the queue is empty. A waiter is a lockId followed by the name of its process.
 *
 * \`beginHandOver(i, nextFence)\` comes before it, and before the lock is taken from its owner. It only passes over a fence.
 * An ACL that forbids a command of the hand-over refuses the script there, and a full server, which allows a ZREM, then
 * allows every write after it.
 *
 * A waiter is passed over if its process does not listen any more. Only a single server can tell: there `countsAll` is
 * '1'. On a Cluster PUBLISH counts the listeners of one node only. A process named `-` cannot be reached by PUBLISH and
 * repeats its attempts by itself. Where the ACL forbids PUBLISH, all processes do so.
 */
export const HANDING_OVER = /* lua */ `
-- Reads: channel, countsAll, COUNT, FENCE_MAX, recordOf.
-- Sets: hears, beginHandOver, handOver.
local function hears(head)
  local processOfHead = string.sub(head, 23)
  if processOfHead == '-' then return true end
  local heard = redis.pcall('PUBLISH', channel .. processOfHead, string.sub(head, 1, 22))
  return type(heard) ~= 'number' or heard > 0 or countsAll == ''
end

local function beginHandOver(i, nextFence)
  redis.call('ZREM', KEYS[2 * COUNT + i], '')
  if nextFence <= FENCE_MAX then redis.call('SET', KEYS[i], string.format('%d', nextFence)) end
end

local function handOver(i, nextFence)
  local queueKey = KEYS[2 * COUNT + i]
  if nextFence > FENCE_MAX then return nil end
  while true do
    local head, another = unpack(redis.call('ZRANGE', queueKey, 0, 1))
    if not head then return nil end
    redis.call('ZREM', queueKey, head)
    if hears(head) then
      local claim = recordOf(i, string.sub(head, 1, 22), ${CLAIM_MS}, nextFence, '') .. (another and '\\t ' or '\\t')
      redis.call('SET', KEYS[COUNT + i], claim, 'PX', ${CLAIM_MS})
      return head, claim
    end
  end
end`;

/**
 * The Lua function `leaveQueue(i)` removes the caller from a queue, also the place that it took under the process `-`
 * before its process listened. `enqueue(i, json)` puts the caller into a queue: at the end when it comes for the first
 * time, or at the position of its ticket. It returns `ticket`, `place` and `dropped` as `AcquireReply` describes them.
 */
export const QUEUEING = /* lua */ `
-- Reads: COUNT, lockId, process, ticket, time.
-- Sets: isQueuedFor, leaveQueue, enqueue.${QUEUED}
local function leaveQueue(i)
  return redis.call('ZREM', KEYS[2 * COUNT + i], lockId .. process, lockId .. '-')
end

local function enqueue(i, json)
  local queueKey, waiter, at = KEYS[2 * COUNT + i], lockId .. process, ticket
  if at == '' then
    -- A call that is sent again because its first reply was lost is in the queue already.
    at = redis.call('ZSCORE', queueKey, waiter) or redis.call('ZSCORE', queueKey, lockId .. '-')
  end
  if not at then
    local last = redis.call('ZRANGE', queueKey, -1, -1, 'WITHSCORES')[2]
    local nowUs = time[1] * 1000000 + time[2]
    at = string.format('%.0f', math.max(nowUs, last and tonumber(last) + 1 or 0))
  end
  -- The end of the queue comes before the place in it, and so does the mark by which a release finds the queue.
  local ends = redis.call('PEXPIRE', queueKey, ${QUEUE_MS})
  if not isQueuedFor(json) then redis.call('APPEND', KEYS[COUNT + i], ' ') end
  local stood = 1 - redis.call('ZADD', queueKey, at, waiter)
  if ends == 0 then redis.call('PEXPIRE', queueKey, ${QUEUE_MS}) end
  if process ~= '-' then stood = stood + redis.call('ZREM', queueKey, lockId .. '-') end
  local place = ticket == '' and redis.call('ZRANK', queueKey, waiter) + 1 or 0
  return at, place, (COUNT == 1 and ticket ~= '' and stood == 0) and 1 or 0
end`;
