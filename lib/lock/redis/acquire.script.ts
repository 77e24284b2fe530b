import { TIME_TOLERANCE_MS } from '../../core/clock.js';
import { defineScript } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import { CLAIM_MS } from '../lock.times.js';
import { decodeAcquire } from './lock.replies.js';
import { EXPIRY, FENCE_MAX, GRANTING, nextFence, OWNERSHIP, recordOf } from './lock.fragments.js';
import { HANDING_OVER, LEAVING, QUEUEING } from './lock.queue.fragments.js';

// A caller that waits passes its `process`. A lock that was handed over to it has a record with its lockId already (a
// claim). So a call that is sent again, and a caller whose turn has come, both find their own record and take it.

/**
 * lock-acquire: Takes a lock if it is free, or is the caller's own. A free lock belongs to the first of its queue.
 * KEYS: fenceCounter, record, queue, index
 * ARGV: lockId, ttlMs, channel, countsAll, process, ticket, nested, queueMs, keyJson
 * Reply: the record as JSON: the lock is granted; with a `!` behind it where `wasHanded` of `AcquireReply` is false.
 *   -1: the fence counter has reached its end. Or an array: the ms that are left of another owner's lock, ticket, place,
 *   passedOn, cameBack, dropped and claimer of `AcquireReply`, and then 1 and the waiter that has got the lock, if one has.
 * Atomic: nobody else can take the lock between the look at it and the write, nor come before the first of its queue.
 */
export const acquireScript = defineScript({
  name: 'lock-acquire',
  keys: ['fenceCounter', 'record', 'queue', 'index'],
  args: ['lockId', 'ttlMs', 'channel', 'countsAll', 'process', 'ticket', 'nested', 'queueMs', 'keyJson'],
  lua: /* lua */ `
${NOW_MS}
-- Without a record and a queue the lock is free. Who has a ticket will find one of them.
if ticket == '' and redis.call('EXISTS', record, queue) == 0 then
${nextFence('fenceCounter')}
  if fence > ${FENCE_MAX} then return -1 end
  local json = ${recordOf('keyJson', 'lockId', 'ttlMs', 'fence')}
  redis.call('SET', fenceCounter, string.format('%d', fence))
  redis.call('SET', record, json, 'PX', ttlMs)
  redis.call('SET', index, record, 'PX', ttlMs)
  return json
end
${GRANTING}${OWNERSHIP}${EXPIRY}${HANDING_OVER}${LEAVING}${QUEUEING}
local held, isOwn, expiry = redis.call('GET', record), false, nil
if held then
  expiry = expiryOf(held)
  if not expiry then return redis.error_reply('SYNCGUARD_FOREIGN the record is not a lock') end
  isOwn = owns(held, lockId)
  if not isOwn and expiry <= nowMs - ${TIME_TOLERANCE_MS} then held = nil end
end

local fence, last
if isOwn or not held then
  fence, last = fenceAfter(fenceCounter)
  if fence > ${FENCE_MAX} then return -1 end
end

if isOwn then
  fence = tonumber(string.match(held, '"fence":"(%d+)"')) or fence
else
  local back, claimer = comesBack(queue, held)
  if back ~= '' then bringBack(queue, back) end
  local first = held and {} or firstIn(queue, back)
  local left, told = held and redis.call('PTTL', record), nil
  if first.waiter and string.sub(first.waiter, 1, 22) ~= lockId and not isBefore(first.at) then
    if name ~= '' then keepQueue(queue) end
    beginHandOver(queue, fenceCounter, fence)
    told, held = handOver(record, queue, keyJson, fence, back, first)
    left = ${CLAIM_MS}
  end
  if held then
    if left < 0 then left = expiry + ${TIME_TOLERANCE_MS} - nowMs end
    if name == '' then return {left, '', 0, 0, 0, 0, '', told and 1, told} end
    local cameBack = back == '' and 0 or 1
    if told and processOf(told) == name then back = '' end
    local entered, place, dropped = enqueue(record, queue, held, back)
    return {left, entered, place, 0, cameBack, dropped, claimer, told and 1, told}
  end
end

local others
if name == '' then
  others = redis.call('EXISTS', queue) == 1
  -- A full server refuses a script whose first write may need memory. PEXPIRE needs none, nor does the ZREM of \`leave\`.
  if isOwn then redis.call('PEXPIRE', index, ttlMs) end
else
  others = leave(queue, name, waiter, unheard)
end
local json = recordOf(keyJson, lockId, ttlMs, fence, '')
if fence > last then redis.call('SET', fenceCounter, string.format('%d', fence)) end
redis.call('SET', record, others and json .. ' ' or json, 'PX', ttlMs)
redis.call('SET', index, record, 'PX', ttlMs)
return (isOwn or ticket == '') and json or json .. '!'`,
  decode: decodeAcquire('lock-acquire'),
});
