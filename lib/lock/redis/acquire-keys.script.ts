import { TIME_TOLERANCE_MS } from '../../core/clock.js';
import { NOW_MS } from '../../script/fragments.js';
import { CLAIM_MS, KEEP_MS } from '../lock.times.js';
import { decodeAcquire } from './lock.replies.js';
import { defineLockScript, EXPIRY, FENCE_MAX, GRANTING, OWNERSHIP } from './lock.fragments.js';
import { HANDING_OVER, LEAVING, PLAIN_FROM, QUEUEING } from './lock.queue.fragments.js';

// A caller stands in the queue of its first locked key and in no other queue. While another of its keys is locked, a key
// that was handed over to it goes on to the next waiter. A caller with `keeps` holds on to all keys before the first
// locked one instead, but for those that a caller waits for which holds a lock. All callers sort their keys in the same way,
// so callers never wait for each other in a circle.

/**
 * lock-acquire-keys: Takes several free locks: all of them, or none.
 * KEYS: fenceCounter*, record*, queue*, index (* one for each key of the user)
 * ARGV: lockId, ttlMs, channel, countsAll, process, ticket, nested, queueMs, keeps, keysJson, and keyJson of each key
 * Reply: as lock-acquire. The record is that of the first key, and each waiter that has got a key stands behind the key's
 *   number.
 * Atomic: nobody else can take a key between the look at it and the write, nor come before the first of its queue.
 */
export const acquireKeysFor = defineLockScript({
  name: 'lock-acquire-keys',
  args: [
    ...(['lockId', 'ttlMs', 'channel', 'countsAll', 'process', 'ticket', 'nested', 'queueMs'] as const),
    ...(['keeps', 'keysJson', 'keyJson'] as const),
  ],
  lua: /* lua */ `
${NOW_MS}
${GRANTING}
local function jsonOf(i) return ARGV[#ARGV - COUNT + i] end

local fences, lasts, fence, queued = {}, {}, 0, {}
for i = 1, COUNT do
  fences[i], lasts[i] = fenceAfter(KEYS[i])
  fence = math.max(fence, fences[i])
end
if fence > ${FENCE_MAX} then return -1 end

-- Without any record or queue all keys are free, and the next part is skipped.
if redis.call('EXISTS', unpack(KEYS, COUNT + 1, 3 * COUNT)) > 0 then
${OWNERSHIP}${EXPIRY}${HANDING_OVER}${LEAVING}${QUEUEING}
local own, locked = {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  if held then
    local expiry = expiryOf(held)
    if not expiry then return redis.error_reply('SYNCGUARD_FOREIGN the record is not a lock') end
    if owns(held, lockId) then
      redis.call('ZCARD', KEYS[2 * COUNT + i]) -- fails if it is no queue, before anything is written
      own[i] = held
    elseif expiry > nowMs - ${TIME_TOLERANCE_MS} then
      locked[i] = held
    end
  end
end

-- A free lock with a queue belongs to the first of the queue.
local back, first, isBeforeAll, cameBack, claimer = {}, {}, {}, 0, ''
for i = 1, COUNT do
  if not own[i] then
    local other
    back[i], other = comesBack(KEYS[2 * COUNT + i], locked[i])
    if back[i] ~= '' then cameBack = 1 end
    if other ~= '' then claimer = other end
  end
end
for i = 1, COUNT do
  local queueKey = KEYS[2 * COUNT + i]
  if not own[i] and back[i] ~= '' then bringBack(queueKey, back[i]) end
  if not own[i] and not locked[i] then
    first[i] = firstIn(queueKey, back[i])
    local other = first[i].waiter
    isBeforeAll[i] = not other or string.sub(other, 1, 22) == lockId or isBefore(first[i].at)
  end
end

local function isWantedByHolder(queueKey)
  local stands = nested == '1'
    and (redis.call('ZSCORE', queueKey, waiter) or redis.call('ZSCORE', queueKey, unheard))
  return redis.call('ZCOUNT', queueKey, 0, ${PLAIN_FROM}) > (stands and 1 or 0)
end

local handed, blocked, left = {}, nil, nil
local function passOn(i)
  local told, claim = handOver(KEYS[COUNT + i], KEYS[2 * COUNT + i], jsonOf(i), fences[i], back[i], first[i])
  if not told then return end
  if processOf(told) == name then back[i] = '' end
  handed[#handed + 1] = i
  handed[#handed + 1] = told
  locked[i] = claim
end
for i = 1, COUNT do
  if not own[i] and not locked[i] and not isBeforeAll[i] then
    if name ~= '' then keepQueue(KEYS[2 * COUNT + i]) end
    beginHandOver(KEYS[2 * COUNT + i], KEYS[i], fences[i])
    passOn(i)
  end
  if locked[i] and not blocked then
    blocked = i
    left = handed[#handed - 1] == i and ${CLAIM_MS} or redis.call('PTTL', KEYS[COUNT + i])
  end
end

if blocked then
  local passedOn, at, place = 0, '', 0
  if name ~= '' then
    -- Nobody can tell whether the caller was dropped from this queue: it may have stood in that of another key.
    at, place = enqueue(KEYS[COUNT + blocked], KEYS[2 * COUNT + blocked], locked[blocked], back[blocked])
  end
  for i = 1, COUNT do
    local recordKey, queueKey, others = KEYS[COUNT + i], KEYS[2 * COUNT + i], false
    local isKept = keeps == '1' and i < blocked and not (own[i] and isWantedByHolder(queueKey))
    local passes = own[i] and not isKept
    if passes then beginHandOver(queueKey, KEYS[i], fences[i]) end
    if name ~= '' and i ~= blocked then others = leave(queueKey, own[i] and name or back[i], waiter, unheard) end
    if passes then
      redis.call('DEL', recordKey)
      passOn(i)
      passedOn = 1
    elseif isKept then
      local ownFence = tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) or fences[i]
      local claim = recordOf(jsonOf(i), lockId, ${KEEP_MS}, ownFence, '') .. '\\t'
      if others then claim = claim .. ' ' end
      if not own[i] then redis.call('SET', KEYS[i], string.format('%d', ownFence)) end
      redis.call('SET', recordKey, claim, 'PX', ${KEEP_MS})
    end
  end

  if left < 0 then left = expiryOf(locked[blocked]) + ${TIME_TOLERANCE_MS} - nowMs end
  return {left, at, place, passedOn, cameBack, 0, claimer, unpack(handed)}
end

local grantedFence = tonumber(string.match(own[1] or '', '"fence":"(%d+)"'))
for i = 1, COUNT do
  local queueKey = KEYS[2 * COUNT + i]
  if name == '' then
    queued[i] = redis.call('EXISTS', queueKey) == 1
  else
    queued[i] = leave(queueKey, name, waiter, unheard)
  end
  -- A full server refuses a script whose first write may need memory. PEXPIRE needs none.
  if own[i] then redis.call('PEXPIRE', index, ttlMs) end
  if tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) ~= grantedFence then grantedFence = nil end
end
fence = grantedFence or fence
end

local first
for i = 1, COUNT do
  local json = recordOf(jsonOf(i), lockId, ttlMs, fence, i == 1 and keysJson or '')
  first = first or json
  redis.call('SET', KEYS[i], string.format('%d', math.max(fence, lasts[i])))
  redis.call('SET', KEYS[COUNT + i], queued[i] and json .. ' ' or json, 'PX', ttlMs)
end
redis.call('SET', index, KEYS[COUNT + 1], 'PX', ttlMs)
return first`,
  decode: decodeAcquire('lock-acquire-keys'),
});
