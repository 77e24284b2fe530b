import { defineLockScript, GRANTING, LIVENESS, OWNERSHIP, QUEUED } from './lock.fragments.js';
import { BRINGING_BACK, HANDING_OVER, LEAVING } from './lock.queue.fragments.js';
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

const RELEASE = /* lua */ `
-- Most locks have one key, are live, and nobody waits for them.
local only = COUNT == 1 and redis.call('GET', KEYS[2])
if only and isLive == '1' and string.sub(only, 1, 33) == '{"lockId":"' .. lockId and string.byte(only, -1) ~= 32 then
  redis.call('DEL', KEYS[2], index)
  return 1
end
${OWNERSHIP}${QUEUED}
local code, own, freed = 1, {index}, {}
for i = 1, COUNT do
  local held = only
  if COUNT > 1 then held = redis.call('GET', KEYS[COUNT + i]) end
  if not held then
    code = code == 1 and -1 or code
    if leaver ~= '' then freed[#freed + 1] = i end
  elseif not owns(held, lockId) then
    code = code == 1 and 0 or code
  else
    own[#own + 1] = KEYS[COUNT + i]
    if isQueuedFor(held) or leaver ~= '' then freed[#freed + 1] = i end
  end
  if leaver ~= '' then redis.call('ZCOUNT', KEYS[2 * COUNT + i], 0, '+inf') end
end

if isLive == '1' and #freed == 0 and leaver == '' then
  if #own > 1 then redis.call('DEL', unpack(own)) end
  return code
end
${LIVENESS}${GRANTING}${HANDING_OVER}${BRINGING_BACK}${LEAVING}
for j = 2, #own do
  if code == 1 and isLive ~= '1' and isDead(redis.call('GET', own[j])) then code = -2 end
end
local fences, first, gone = {}, {}, processOf(leaver)
for _, i in ipairs(freed) do
  if gone ~= '' and redis.call('ZSCORE', KEYS[2 * COUNT + i], gone) then bringBack(KEYS[2 * COUNT + i], gone) end
  local found = firstIn(KEYS[2 * COUNT + i], gone)
  if found.waiter then fences[i] = fenceAfter(KEYS[i]) end
  if leaver == '' then first[i] = found end -- The leaver may be this one.
end

for _, i in ipairs(freed) do
  if fences[i] then beginHandOver(KEYS[2 * COUNT + i], KEYS[i], fences[i]) end
end
if #own > 1 then redis.call('DEL', unpack(own)) end
if leaver ~= '' then
  for i = 1, COUNT do leave(KEYS[2 * COUNT + i], fences[i] and gone or '', leaver, leaver .. '-') end
end
local reply = {code}
for _, i in ipairs(freed) do
  local recordKey, queueKey, json = KEYS[COUNT + i], KEYS[2 * COUNT + i], ARGV[#ARGV - COUNT + i]
  local told = fences[i] and handOver(recordKey, queueKey, json, fences[i], nil, first[i])
  if told then
    reply[#reply + 1] = i
    reply[#reply + 1] = told
  end
end
return #reply == 1 and code or reply`;

/**
 * lock-release: Ends a lock of the caller. A lock with a queue goes to the first of it. So does a free lock whose queue
 * the caller leaves: its process may be passed over there, and is so no more.
 * KEYS: fenceCounter*, record*, queue*, index (* one for each key of the user)
 * ARGV: lockId, isLive ('1': the holder's clock says that the lock is live, so that the server's clock is not
 *   asked), leaver (of a caller that gives up waiting: its lockId and process), channel, countsAll, and keyJson of each key
 * Reply: 1 released, 0 mismatch, -1 not found, -2 expired: of several keys the first that is not 1. Or an array
 *   of this code and pairs of a key's number and the waiter that has got the key.
 * Atomic: only the owner's lock is deleted, and nobody can come before the head of the queue.
 */
export const releaseFor = defineLockScript({
  name: 'lock-release',
  args: ['lockId', 'isLive', 'leaver', 'channel', 'countsAll', 'keyJson'],
  lua: RELEASE,
  decode: decodeRelease,
});

/**
 * lock-release-seen: Ends a lock that somebody has seen. Who was handed a lock takes it under the same lockId, and of several
 * keys with a higher fence: that is another lock.
 * KEYS: fenceCounter*, record*, queue*, index (* one for each key of the user)
 * ARGV: seenFence (of the lock that was seen), and those of lock-release
 * Reply: as of lock-release; -1 where another fence is there.
 * Atomic: between the look at the fence and the release nobody takes the lock.
 */
export const releaseSeenFor = defineLockScript({
  name: 'lock-release-seen',
  args: ['seenFence', 'lockId', 'isLive', 'leaver', 'channel', 'countsAll', 'keyJson'],
  lua: /* lua */ `
local isRead, seen = pcall(cjson.decode, redis.call('GET', KEYS[COUNT + 1]) or '')
if not isRead or type(seen) ~= 'table' or seen.fence ~= seenFence then return -1 end
${RELEASE}`,
  decode: decodeRelease,
});
