import { defineLockScript, EXTENDING, LIVENESS, OWNERSHIP, QUEUED } from './lock.fragments.js';
import { QUEUE } from './lock.queue.fragments.js';
import { decodeExtend } from './lock.replies.js';

/**
 * lock-extend: Replaces the rest of the life of the caller's lock: of all of its keys, or of none.
 * KEYS: fenceCounter*, record*, queue*, index (* one for each key of the user)
 * ARGV: lockId, ttlMs, channel, countsAll
 * Reply: [1, the new expiry], or a code of lock-release. Where the life becomes shorter, the first of the queue
 *   is woken, so that it tries again in time.
 * Atomic: a lock that has expired or has another owner is never extended.
 */
export const extendFor = defineLockScript({
  name: 'lock-extend',
  args: ['lockId', 'ttlMs', 'channel', 'countsAll'],
  lua: /* lua */ `
${OWNERSHIP}${QUEUED}${LIVENESS}${EXTENDING}${QUEUE}
local new, told = {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  if not held then return -1 end
  if not owns(held, lockId) then return 0 end
  if isDead(held) then
    redis.call('DEL', KEYS[COUNT + i], index)
    return -2
  end
  if isQueuedFor(held) and expiresAtMs < expiryOf(held) then
    told[#told + 1] = firstIn(KEYS[2 * COUNT + i]).waiter
  end
  new[i] = extended(held)
end
-- A full server refuses a script whose first write may need memory. PEXPIRE needs none. A record and its TTL change in
-- one command: a TTL alone could end the lock under its owner.
redis.call('PEXPIRE', index, ttlMs)
for i = 1, COUNT do redis.call('SET', KEYS[COUNT + i], new[i], 'PX', ttlMs) end
redis.call('SET', index, KEYS[COUNT + 1], 'PX', ttlMs)
for _, waiter in ipairs(told) do
  redis.pcall('PUBLISH', channel .. processOf(waiter), string.sub(waiter, 1, 22))
end
return {1, expiresAtMs}`,
  decode: decodeExtend,
});
