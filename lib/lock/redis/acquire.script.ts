import { CLAIM_MS, KEEP_MS } from '../lock.times.js';
import { TIME_TOLERANCE_MS } from '../../core/clock.js';
import { defineLockScript, EXPIRY, GRANTING, HANDING_OVER, OWNERSHIP, QUEUEING } from './lock.fragments.js';
import { handedOver, type HandedOver } from './lock.replies.js';
import { unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

export type AcquireReply =
  | { readonly status: 'granted'; readonly fence: string; readonly expiresAtMs: number }
  | {
      readonly status: 'locked';
      readonly remainingMs: number;
      /** Orders the queue: the caller passes it again to keep its place. Empty if the caller does not wait. */
      readonly ticket: string;
      /** The caller's place in the queue, counted from 1, when it has just entered. 0 if it stood there before. */
      readonly place: number;
      /** The caller had claimed a key, and the key went to the next waiter, because another key was still locked. */
      readonly passedOn: boolean;
      /** The caller was removed from the queue since its last attempt, because its process did not react to its turn. */
      readonly dropped: boolean;
      readonly handed: readonly HandedOver[];
    }
  | { readonly status: 'fence-overflow' };

const OWN_RECORD =
  /^\{"lockId":"[\w-]{22}","expiresAtMs":(\d+),"acquiredAtMs":\d+,"key":".*","fence":"(\d{15})"(?:,"keys":\[.*\])?\}$/s;

// A caller that waits passes its `process`. It stands in the queue of its first locked key and in no other queue. A key
// that was handed over to it has a record with its lockId already (a claim). So a call that is sent again, and a caller
// whose turn has come, both find their own records and take them. While another of its keys is locked, a claimed key
// goes on to the next waiter. A caller with `keeps` holds on to all keys before the first locked one instead. All
// callers sort their keys in the same way, so callers never wait for each other in a circle.

/**
 * lock-acquire: Takes free locks: all of them, or none.
 * KEYS: fenceCounter*, record*, queue*, index (* one for each key of the user)
 * ARGV: lockId, ttlMs, channel, countsAll, process, ticket, keeps, keysJson, and keyJson of each key
 * Reply: the record of the first key as JSON: all locks are granted. -1: a fence counter has reached its end. Or an array:
 *   the ms that are left of another owner's lock, ticket, place, passedOn and dropped of `AcquireReply`, and then pairs of
 *   a key's number and the waiter that has got the key.
 * Atomic: nobody else can take a key between the look at it and the write, nor come before the head of its queue.
 */
export const acquireFor = defineLockScript({
  name: 'lock-acquire',
  args: ['lockId', 'ttlMs', 'channel', 'countsAll', 'process', 'ticket', 'keeps', 'keysJson', 'keyJson'],
  lua: /* lua */ `
${NOW_MS}
${GRANTING}

local fences, fence, queued = {}, 0, {}
for i = 1, COUNT do
  fences[i] = fenceOf(i)
  fence = math.max(fence, fences[i])
end

-- Without any record or queue all keys are free, and the next part is skipped.
if redis.call('EXISTS', unpack(KEYS, COUNT + 1, 3 * COUNT)) > 0 then
${OWNERSHIP}${EXPIRY}${HANDING_OVER}${QUEUEING}

local own, locked, heads = {}, {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  heads[i] = redis.call('ZRANGE', KEYS[2 * COUNT + i], 0, 0, 'WITHSCORES')
  if held then
    local expiry = expiryOf(held)
    if not expiry then return redis.error_reply('SYNCGUARD_FOREIGN the record is not a lock') end
    if owns(held, lockId) then
      own[i] = held
    elseif expiry > nowMs - ${TIME_TOLERANCE_MS} then
      locked[i] = held
    end
  end
end

-- A free lock with a queue belongs to the head of the queue. True if the caller may take it before that head.
local function isBefore(i)
  local head, at = heads[i][1], heads[i][2]
  if not head or string.sub(head, 1, 22) == lockId then return true end
  return ticket ~= '' and tonumber(ticket) <= tonumber(at)
end
local handed, blocked, left = {}, nil, nil
local function passOn(i)
  local head, claim = handOver(i, fences[i])
  if not head then return end
  handed[#handed + 1] = i
  handed[#handed + 1] = head
  locked[i] = claim
end
for i = 1, COUNT do
  if not own[i] and not locked[i] and not isBefore(i) then
    beginHandOver(i, fences[i])
    passOn(i)
  end
  if locked[i] and not blocked then
    blocked = i
    left = handed[#handed - 1] == i and ${CLAIM_MS} or redis.call('PTTL', KEYS[COUNT + i])
  end
end

if blocked then
  local passedOn, at, place, dropped = 0, '', 0, 0
  if process ~= '' then at, place, dropped = enqueue(blocked, locked[blocked]) end
  for i = 1, COUNT do
    local kept = keeps == '1' and i < blocked
    if kept then
      local ownFence = tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) or fences[i]
      local claim = recordOf(i, lockId, ${KEEP_MS}, ownFence, '') .. '\\t'
      if redis.call('EXISTS', KEYS[2 * COUNT + i]) == 1 then claim = claim .. ' ' end
      if not own[i] then redis.call('SET', KEYS[i], string.format('%d', ownFence)) end
      redis.call('SET', KEYS[COUNT + i], claim, 'PX', ${KEEP_MS})
    elseif own[i] then
      beginHandOver(i, fences[i])
      redis.call('DEL', KEYS[COUNT + i])
      passOn(i)
      passedOn = 1
    end
    if ticket ~= '' and i ~= blocked then leaveQueue(i) end
  end

  if left < 0 then left = expiryOf(locked[blocked]) + ${TIME_TOLERANCE_MS} - nowMs end
  return {left, at, place, passedOn, dropped, unpack(handed)}
end

local grantedFence = tonumber(string.match(own[1] or '', '"fence":"(%d+)"'))
for i = 1, COUNT do
  if ticket ~= '' then leaveQueue(i) end
  queued[i] = redis.call('EXISTS', KEYS[2 * COUNT + i]) == 1
  -- A full server refuses a script whose first write may need memory. PEXPIRE needs none.
  if own[i] then redis.call('PEXPIRE', index, ttlMs) end
  if tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) ~= grantedFence then grantedFence = nil end
end
fence = grantedFence or fence
end

if fence > FENCE_MAX then return -1 end
local first
for i = 1, COUNT do
  local json = recordOf(i, lockId, ttlMs, fence, i == 1 and keysJson or '')
  first = first or json
  redis.call('SET', KEYS[i], string.format('%d', fence))
  redis.call('SET', KEYS[COUNT + i], queued[i] and json .. ' ' or json, 'PX', ttlMs)
end
redis.call('SET', index, KEYS[COUNT + 1], 'PX', ttlMs)
return first`,
  decode(reply): AcquireReply {
    if (reply === -1) return { status: 'fence-overflow' };
    if (Array.isArray(reply) && typeof reply[0] === 'number' && typeof reply[1] === 'string') {
      const [remainingMs, ticket, place, passedOn, dropped, ...handed] = reply as [
        number,
        string,
        number,
        number,
        number,
      ];
      return {
        ...{ status: 'locked', remainingMs, ticket, place },
        ...{ passedOn: passedOn === 1, dropped: dropped === 1 },
        handed: handedOver(handed, 'lock-acquire'),
      };
    }
    const [, expiresAtMs, fence] = (typeof reply === 'string' && OWN_RECORD.exec(reply)) || [];
    if (!expiresAtMs || !fence) return unexpectedReply('lock-acquire', reply);
    return { status: 'granted', fence, expiresAtMs: Number(expiresAtMs) };
  },
});
