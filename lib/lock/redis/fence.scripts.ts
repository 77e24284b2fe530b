import { defineScript, unexpectedReply } from '../../script/define-script.js';
import type { FenceResult } from '../fence.backend.js';

/** Ends with the last fence if that is higher, or is equal and has another lock id. */
const COMPARE = /* lua */ `
local last = redis.call('GET', guard)
if last then
  local lastFence, lastLockId = string.match(last, '^(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)([%w_-]+)$')
  if not lastFence then return redis.error_reply('SYNCGUARD_FOREIGN the key is not the last fence of a resource') end
  if lastFence > fence or (lastFence == fence and lastLockId ~= lockId) then return lastFence end
end`;

const decode = (reply: unknown): FenceResult => {
  if (reply === 1) return { ok: true };
  return typeof reply === 'string' ? { ok: false, lastFence: reply } : unexpectedReply('fence-apply', reply);
};

/**
 * fence-apply: Notes a fence, unless a higher one was seen, or an equal one with another lock id.
 * KEYS: guard. It has the last fence with its lock id behind it: 37 characters, which are compared as text. It
 *   is never deleted.
 * ARGV: fence, lockId
 * Reply: 1, or the last fence. A second run finds its own fence, and writes the same again.
 * Atomic: between the comparison and the write no other holder may write.
 */
export const applyFenceScript = defineScript({
  name: 'fence-apply',
  keys: ['guard'],
  args: ['fence', 'lockId'],
  lua: /* lua */ `${COMPARE}
redis.call('SET', guard, fence .. lockId)
return 1`,
  decode,
});

/**
 * fence-apply-set: As fence-apply, and writes the user's key in the same step. Its TTL stays.
 * KEYS: guard, target
 * ARGV: fence, lockId, value
 * Reply: as fence-apply.
 * Atomic: a holder whose fence was passed never writes the user's key.
 */
export const applyAndSetScript = defineScript({
  name: 'fence-apply-set',
  keys: ['guard', 'target'],
  args: ['fence', 'lockId', 'value'],
  lua: /* lua */ `${COMPARE}
local kind = redis.call('TYPE', target).ok
if kind ~= 'none' and kind ~= 'string' then
  return redis.error_reply('SYNCGUARD_FOREIGN the key to set is not a String')
end
redis.call('SET', guard, fence .. lockId)
redis.call('SET', target, value, 'KEEPTTL')
return 1`,
  decode,
});

/**
 * fence-get: Reads the user's key.
 * KEYS: target
 * ARGV: none
 * Reply: [0], or [1, value]
 * Atomic: it is one command.
 */
export const getFencedScript = defineScript({
  name: 'fence-get',
  keys: ['target'],
  args: [],
  alone: true,
  lua: /* lua */ `
local value = redis.call('GET', target)
return value and {1, value} or {0}`,
  decode(reply): string | null {
    if (!Array.isArray(reply)) return unexpectedReply('fence-get', reply);
    return reply[0] === 1 ? (reply[1] as string) : null;
  },
});

export const fenceScripts = [applyFenceScript, applyAndSetScript, getFencedScript];
