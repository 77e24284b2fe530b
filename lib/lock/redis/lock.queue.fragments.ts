import { CLAIM_MS } from '../lock.times.js';
import { FENCE_MAX, QUEUED } from './lock.fragments.js';

// The Lua of the queue: who is first in it, how a lock is handed over, and how callers enter and leave.

/** How long a queue lives without an attempt, in ms. Where callers look less often by themselves, it lives longer. */
export const QUEUE_MS = 60_000;

/** Tickets are times in µs, those of callers that hold a lock half of them: so these stand before all others. */
export const PLAIN_FROM = 1_500_000_000_000_000;

/** Stands in a queue after a hand-over to a caller that holds a lock: the next one goes to a caller that holds none. */
const PLAIN_NEXT = '+';

// A queue is a sorted set of waiters by their tickets. A waiter is its lockId (22 characters), the name of its process
// (16), and a `-` if no message can reach it. Between hand-overs the first of them is the next. It stays in the queue
// until it has taken the lock. Callers that hold a lock come before those that hold none, which may wait for that lock; but
// between two of them the first of the others gets its turn.
//
// Beside the waiters stand marks: the name of a process, by the time of the hand-over as a negative number, so before
// all waiters. A hand-over sets the mark of the process that it chose, and the claim takes it away. So a process whose
// mark stands while its claim is over has missed its turn. It is passed over: its waiters keep their places, and get no
// turn, until it makes an attempt. Every script sees the same mark, so it does not matter which of them comes first.
//
// Its waiters may be thousands. So the next hand-over puts them aside, behind all others: `ASIDE` is added to their
// tickets, until their process makes an attempt. In between no script walks past them.
export const ASIDE = 4e15;

/**
 * The Lua function `firstIn(queueKey, here)` returns a table: `waiter`, the next one whose process is not passed over, and
 * `at`, its ticket; `gone`, a process that was passed over so long ago that it is gone; `walks`, whether it has walked past
 * waiters; and `isPlain`, whether it is the turn of a caller that holds no lock. The process `here` counts as not passed over.
 */
export const QUEUE = /* lua */ `
-- Reads: nowMs.
-- Sets: processOf, firstIn.
local function processOf(waiter) return string.sub(waiter, 23, 38) end

local function firstIn(queueKey, here)
  local found, passed, from, size = {}, {}, 0, 4
  while true do
    local some = redis.call('ZRANGE', queueKey, from, from + size - 1, 'WITHSCORES')
    for i = 1, #some, 2 do
      local at = tonumber(some[i + 1])
      if at < 0 then
        passed[some[i]] = some[i] ~= here
        if some[i] == '${PLAIN_NEXT}' then found.isPlain = true end
        if -at < nowMs - ${QUEUE_MS} then found.gone = some[i] end
      elseif at >= ${ASIDE} then
        return found
      elseif passed[processOf(some[i])] then
        found.walks = true
      elseif at >= ${PLAIN_FROM} or not found.isPlain then
        found.waiter, found.at = some[i], at
        return found
      elseif not found.waiter then
        found.waiter, found.at = some[i], at
      end
    end
    if #some < 2 * size then return found end
    from, size = from + size, 64
    if found.waiter then from = math.max(from, redis.call('ZCOUNT', queueKey, '-inf', ${PLAIN_FROM})) end
  end
end`;

/**
 * The Lua function `handOver(recordKey, queueKey, json, nextFence, here, first)` makes the first waiter the owner for the
 * time of a claim, and publishes this to its process. It returns the waiter and the claim, or nothing if nobody can be served.
 * A caller that knows what `firstIn` returns passes it.
 *
 * `beginHandOver(queueKey, counter, nextFence)` comes before it, and before the lock is taken from its owner. It only passes
 * over a fence, `nextFence`. An ACL that forbids a command of the hand-over refuses the script there, and a full server,
 * which allows a ZREM, then allows every write after it.
 *
 * Where a process does not listen any more, it is passed over at once. Only a single server can tell: there
 * `countsAll` is '1'. On a Cluster PUBLISH counts the listeners of one node only. Where the ACL forbids PUBLISH, all
 * processes repeat their attempts by themselves.
 */
export const HANDING_OVER = /* lua */ `
-- Reads: channel, countsAll, nowMs, recordOf.
-- Sets: processOf, firstIn, hears, beginHandOver, forget, putAside, handOver.${QUEUE}
local function hears(waiter)
  if #waiter > 38 then return true end
  local heard = redis.pcall('PUBLISH', channel .. processOf(waiter), string.sub(waiter, 1, 22))
  return type(heard) ~= 'number' or heard > 0 or countsAll == ''
end

local function beginHandOver(queueKey, counter, nextFence)
  redis.call('ZREM', queueKey, '')
  redis.call('ZADD', queueKey, 'XX', 0, '')
  if nextFence <= ${FENCE_MAX} then redis.call('SET', counter, string.format('%d', nextFence)) end
end

local function forget(queueKey, gone)
  for _, member in ipairs(redis.call('ZRANGE', queueKey, 0, -1)) do
    if member == gone or processOf(member) == gone then redis.call('ZREM', queueKey, member) end
  end
end

local function putAside(queueKey, here)
  local all, passed = redis.call('ZRANGE', queueKey, 0, -1, 'WITHSCORES'), {}
  for i = 1, #all, 2 do
    local at = tonumber(all[i + 1])
    if at >= ${ASIDE} then return end
    if at < 0 then
      passed[all[i]] = all[i] ~= here
    elseif passed[processOf(all[i])] then
      redis.call('ZADD', queueKey, at + ${ASIDE}, all[i])
    end
  end
end

local function handOver(recordKey, queueKey, json, nextFence, here, first)
  if nextFence > ${FENCE_MAX} then return nil end
  while true do
    local found = first or firstIn(queueKey, here)
    local waiter, gone = found.waiter, found.gone
    first = nil
    if gone and gone ~= here then forget(queueKey, gone) end
    if found.walks then putAside(queueKey, here) end
    if not waiter then return nil end
    if processOf(waiter) == here then here = nil end
    if found.at < ${PLAIN_FROM} then
      redis.call('ZADD', queueKey, -nowMs, processOf(waiter), '-inf', '${PLAIN_NEXT}')
    else
      redis.call('ZADD', queueKey, -nowMs, processOf(waiter))
      if found.isPlain then redis.call('ZREM', queueKey, '${PLAIN_NEXT}') end
    end
    if hears(waiter) then
      local claim = recordOf(json, string.sub(waiter, 1, 22), ${CLAIM_MS}, nextFence, '') .. '\\t '
      redis.call('SET', recordKey, claim, 'PX', ${CLAIM_MS})
      return waiter, claim
    end
    putAside(queueKey, here)
  end
end`;

/** The Lua function `bringBack(queueKey, name)` gives the waiters of a process their places again, if they were put aside. */
export const BRINGING_BACK = /* lua */ `
-- Reads: processOf.
-- Sets: bringBack.
local function bringBack(queueKey, name)
  redis.call('ZREM', queueKey, '') -- A full server allows it, and then every write after it.
  local all = redis.call('ZRANGE', queueKey, 0, -1, 'WITHSCORES')
  for i = #all - 1, 1, -2 do
    local at = tonumber(all[i + 1])
    if at < ${ASIDE} then return end
    if processOf(all[i]) == name then redis.call('ZADD', queueKey, at - ${ASIDE}, all[i]) end
  end
end`;

/**
 * The Lua function `leave(queueKey, ...)` removes waiters from a queue, and marks. It returns whether others wait. Where none
 * does, nothing is left of the queue.
 */
export const LEAVING = /* lua */ `
-- Sets: leave.
local function leave(queueKey, ...)
  redis.call('ZREM', queueKey, ...)
  local others = redis.call('ZCOUNT', queueKey, 0, '+inf') > 0
  if not others then redis.call('DEL', queueKey) end
  return others
end`;

/**
 * The Lua functions of a caller that waits, whose process is `name`; `process` has a `-` besides where no message can
 * reach it. `comesBack(queueKey, held)` returns `name` if the process was passed over, which ends by this attempt. Else it
 * returns '', and the lockId of another waiter of the process if the lock is handed to that one just now. `isBefore(at)`
 * returns whether the caller has an older ticket than `at` of the same kind. `keepQueue(queueKey)` lets a queue live for
 * `queueMs` from now on; a script that hands over before it enqueues calls it first, as an ACL may forbid it.
 * `enqueue(recordKey, queueKey, json, back)` puts the caller into a queue: at the end when it comes for the first time, or
 * at the position of its ticket. It removes the mark `back`. It returns `ticket`, `place` and `dropped` as `AcquireReply`
 * describes them. An attempt that was made before is told to its own process, as a sign that messages arrive.
 */
export const QUEUEING = /* lua */ `
-- Reads: channel, lockId, process, ticket, nested, queueMs, time, processOf.
-- Sets: isQueuedFor, bringBack, name, waiter, unheard, comesBack, isBefore, keepQueue, enqueue.${QUEUED}${BRINGING_BACK}
local name = string.sub(process, 1, 16)
local waiter, unheard = lockId .. name, lockId .. name .. '-'

local function comesBack(queueKey, held)
  if name == '' or not redis.call('ZSCORE', queueKey, name) then return '', '' end
  local other = held and string.find(held, '\\t', -2, true) and string.sub(held, 12, 33)
  if other then
    local theirs = other .. name
    if redis.call('ZSCORE', queueKey, theirs) or redis.call('ZSCORE', queueKey, theirs .. '-') then return '', other end
  end
  return name, ''
end

local function isBefore(other)
  if ticket == '' then return false end
  local own = tonumber(ticket)
  return own <= other and (own < ${PLAIN_FROM}) == (other < ${PLAIN_FROM})
end

-- A queue that lives for half a second less is as good.
local function keepQueue(queueKey)
  if redis.call('PTTL', queueKey) > queueMs - 500 then return 1 end
  return redis.call('PEXPIRE', queueKey, queueMs)
end

local function enqueue(recordKey, queueKey, json, back)
  local own, other = lockId .. process, process == name and unheard or waiter
  -- A call that is sent again because its first reply was lost is in the queue already.
  local stands = redis.call('ZSCORE', queueKey, own)
  local stood = not stands and redis.call('ZSCORE', queueKey, other)
  local isNew = not stands and not stood
  local at, place = ticket == '' and (stands or stood or '') or ticket, 0
  if at == '' then
    local lastAt = -1
    if nested == '1' then lastAt = math.max(redis.call('ZCOUNT', queueKey, '-inf', ${PLAIN_FROM}) - 1, 0) end
    local latest = tonumber(redis.call('ZRANGE', queueKey, lastAt, lastAt, 'WITHSCORES')[2] or 0)
    if latest >= ${ASIDE} then latest = latest - ${ASIDE} end
    local nowUs = time[1] * 1000000 + time[2]
    if nested == '1' then nowUs = math.floor(nowUs / 2) end
    if nested == '1' and latest >= ${PLAIN_FROM} then latest = 0 end
    at = string.format('%.0f', math.max(nowUs, latest + 1))
  end
  if ticket == '' then place = redis.call('ZCOUNT', queueKey, 0, at) + (isNew and 1 or 0) end
  -- The end of the queue comes before the place in it, and so does the mark by which a release finds the queue.
  local ends = keepQueue(queueKey)
  if not isQueuedFor(json) then redis.call('APPEND', recordKey, ' ') end
  redis.call('ZADD', queueKey, at, own)
  if ends == 0 then keepQueue(queueKey) end
  if stood or back ~= '' then redis.call('ZREM', queueKey, other, back) end
  if ticket ~= '' and process == name then redis.pcall('PUBLISH', channel .. name, '') end
  return at, place, (ticket ~= '' and isNew) and 1 or 0
end`;
