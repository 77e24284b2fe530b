import { TIME_TOLERANCE_MS } from '../clock.js';
import { NOW_MS } from '../script/fragments.js';
import { FENCE_THRESHOLDS } from './lock.record.js';

/** How long a head of a queue has time to take what was handed over to it, in ms. */
export const CLAIM_MS = 500;

/** A queue that nobody looks at any more is gone after so long. */
const QUEUE_MS = 60_000;

// A record is `{"lockId":"...","expiresAtMs":n,"acquiredAtMs":n,"key":"...","fence":"..."}` (docs/wire-format.md). Ours
// stand in this order without spaces; those of other programs may not. A quote inside a user's key is escaped
// in JSON, so `"lockId":"` and `"expiresAtMs":` are found as fields only, never inside a key.
//
// Behind it may stand white space, which is JSON still: a tab where the lock was handed over and is not taken yet, a
// space (the last) where somebody queues, so that the release of a lock that nobody waits for looks into no queue.
export const OWNERSHIP = `
local function decode(json)
  local ok, fields = pcall(cjson.decode, json)
  return ok and type(fields) == 'table' and fields or {}
end

local function owns(json, id)
  if string.find(json, '"lockId":"' .. id .. '"', 1, true) then return true end
  return string.sub(json, 1, 11) ~= '{"lockId":"' and decode(json).lockId == id
end

local function isQueuedFor(json) return string.byte(json, -1) == 32 end
local function isClaim(json) return string.find(json, '\\t', -2, true) ~= nil end`;

export const EXPIRY = `
local function expiryOf(json)
  return tonumber(string.match(json, '"expiresAtMs":(%d+)[,}]') or decode(json).expiresAtMs)
end`;

export const LIVENESS = `${NOW_MS}${EXPIRY}
local function isDead(json)
  local expiry = expiryOf(json)
  return not expiry or expiry <= nowMs - ${TIME_TOLERANCE_MS}
end`;

/**
 * For scripts whose KEYS are so many fence counters, as many records and as many queues, and whose ARGV end with as
 * many keys of the user as JSON. The i-th of each belong together.
 */
export const layoutOf = (count: number, args: number): string => `
local COUNT = ${count}
local function fenceKeyOf(i) return KEYS[i] end
local function recordKeyOf(i) return KEYS[COUNT + i] end
local function queueKeyOf(i) return KEYS[2 * COUNT + i] end
local function keyJsonOf(i) return ARGV[${args} + i] end`;

/**
 * `fenceOf(i)`: what the next fence of a key is. A counter that was lost starts from the clock, which is ahead of every
 * fence it ever gave. In tenths of a ms: two primaries after a split must not give one fence for grants of the same ms.
 * `recordOf(...)`: a record of ours.
 */
export const GRANTING = `
local FENCE_MAX = ${Number(FENCE_THRESHOLDS.MAX)}
local function fenceOf(i)
  local last = redis.call('GET', fenceKeyOf(i)) or '0'
  if not string.find(last, '^%d+$') then error('SYNCGUARD_FOREIGN the fence is not a counter', 0) end
  return math.max(tonumber(last) + 1, time[1] * 10000 + math.floor(time[2] / 100))
end

local function recordOf(i, id, lifeMs, fence, rest)
  return string.format('{"lockId":"%s","expiresAtMs":%d,"acquiredAtMs":%d,"key":%s,"fence":"%015d"%s}',
    id, nowMs + lifeMs, nowMs, keyJsonOf(i), fence, rest)
end`;

/**
 * `handOver(i, fence)`: makes the head of a queue the owner, for as long as it may take to claim that, and tells its
 * process. Returns the head; nothing, if nobody waits. A waiter is a lockId and its process. One whose process does not
 * listen any more is passed; `countsAll` says that PUBLISH counts all who listen (on a Cluster: those of one node). The
 * process `-` looks by itself, and where PUBLISH is not allowed all do.
 */
export const HANDING_OVER = `
local function hears(waiter)
  local process = string.sub(waiter, 23)
  if process == '-' then return true end
  local heard = redis.pcall('PUBLISH', channel .. process, string.sub(waiter, 1, 22))
  return type(heard) ~= 'number' or heard > 0 or countsAll == ''
end

local function handOver(i, fence)
  if fence > FENCE_MAX then return nil end
  local queue = queueKeyOf(i)
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  while head do
    redis.call('ZREM', queue, head)
    if hears(head) then
      local claim = recordOf(i, string.sub(head, 1, 22), ${CLAIM_MS}, fence, '') .. '\\t'
      if redis.call('EXISTS', queue) == 1 then claim = claim .. ' ' end
      redis.call('SET', fenceKeyOf(i), string.format('%d', fence))
      redis.call('PSETEX', recordKeyOf(i), ${CLAIM_MS}, claim)
      return head, claim
    end
    head = redis.call('ZRANGE', queue, 0, 0)[1]
  end
end`;

/**
 * `leaveQueue(i)`: also the place that the caller has taken while its process did not listen yet.
 * `enqueue(i, json)`: puts the caller into a queue, behind all others when it comes for the first time, else where its
 * ticket says. Returns the ticket, its place when it came, and whether its place had been taken from it.
 */
export const QUEUEING = `
local function leaveQueue(i)
  return redis.call('ZREM', queueKeyOf(i), lockId .. process, lockId .. '-')
end

local function enqueue(i, json)
  local queue, waiter, at = queueKeyOf(i), lockId .. process, ticket
  if at == '' then
    -- A call that is sent again, since its first reply was lost, stands there already.
    at = redis.call('ZSCORE', queue, waiter) or redis.call('ZSCORE', queue, lockId .. '-')
  end
  if not at then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    local nowUs = time[1] * 1000000 + time[2]
    at = string.format('%.0f', math.max(nowUs, last and tonumber(last) + 1 or 0))
  end
  local stood = leaveQueue(i)
  redis.call('ZADD', queue, at, waiter)
  redis.call('PEXPIRE', queue, ${QUEUE_MS})
  if not isQueuedFor(json) then redis.call('APPEND', recordKeyOf(i), ' ') end
  local place = ticket == '' and redis.call('ZRANK', queue, waiter) + 1 or 0
  return at, place, (COUNT == 1 and ticket ~= '' and stood == 0) and 1 or 0
end`;
