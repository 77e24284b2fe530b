import { defineLockScript, GRANTING, HANDING_OVER, LIVENESS, OWNERSHIP, QUEUED } from './lock.fragments.js';
import { RELEASE_CODES, handedOver, type HandedOver, type ReleaseCode } from './lock.replies.js';
import { unexpectedReply } from '../../script/define-script.js';

export interface ReleaseReply {
  readonly code: ReleaseCode;
  readonly handed: readonly HandedOver[];
}

function decodeRelease(reply: unknown): ReleaseReply {
  const [code, ...handed] = Array.isArray(reply) ? (reply as unknown[]) : [reply];
  return {
    code: RELEASE_CODES[code as number] ?? unexpectedReply('lock-release', reply),
    handed: handedOver(handed, 'lock-release'),
  };
}

/**
 * lock-release: Ends a lock of the caller. A lock with a queue goes to the head of its queue.
 * KEYS: fenceCounter*, record*, queue*, index (* one for each key of the user)
 * ARGV: lockId, isLive ('1': the holder's clock says that the lock is live, so that the server's clock is not
 *   asked), waiter (of a caller that gives up waiting), channel, countsAll, and keyJson of each key
 * Reply: 1 released, 0 mismatch, -1 not found, -2 expired: of several keys the first that is not 1. Or an array
 *   of this code and pairs of a key's number and the waiter that has got the key.
 * Atomic: only the owner's lock is deleted, and nobody can come before the head of the queue.
 */
export const releaseFor = defineLockScript({
  name: 'lock-release',
  args: ['lockId', 'isLive', 'waiter', 'channel', 'countsAll', 'keyJson'],
  lua: /* lua */ `
${OWNERSHIP}${QUEUED}
local code, own, queued = 1, {index}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  if not held then
    code = code == 1 and -1 or code
  elseif not owns(held, lockId) then
    code = code == 1 and 0 or code
  else
    own[#own + 1] = KEYS[COUNT + i]
    if isQueuedFor(held) then queued[#queued + 1] = i end
  end
  if waiter ~= '' then redis.call('ZCARD', KEYS[2 * COUNT + i]) end
end

if isLive == '1' and #queued == 0 and waiter == '' then
  if #own > 1 then redis.call('DEL', unpack(own)) end
  return code
end
${LIVENESS}${GRANTING}${HANDING_OVER}
for j = 2, #own do
  if code == 1 and isLive ~= '1' and isDead(redis.call('GET', own[j])) then code = -2 end
end
local fences = {}
for _, i in ipairs(queued) do
  redis.call('ZRANGE', KEYS[2 * COUNT + i], 0, 0)
  fences[i] = fenceOf(i)
end

for _, i in ipairs(queued) do beginHandOver(i, fences[i]) end
if #own > 1 then redis.call('DEL', unpack(own)) end
if waiter ~= '' then
  for i = 1, COUNT do redis.call('ZREM', KEYS[2 * COUNT + i], waiter, lockId .. '-') end
end
local reply = {code}
for _, i in ipairs(queued) do
  local head = handOver(i, fences[i])
  if head then
    reply[#reply + 1] = i
    reply[#reply + 1] = head
  end
end
return #reply == 1 and code or reply`,
  decode: decodeRelease,
});
