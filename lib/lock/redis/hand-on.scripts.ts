import { GRANTING, HANDING_OVER } from './lock.fragments.js';
import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/**
 * lock-hand-on: Passes over a waiter that has not taken the lock that was handed over to it, as its process is
 * gone or stands still. All waiters of that process leave the queue. If it comes back, it enters again with its
 * old tickets.
 * KEYS: fenceCounter, record, queue
 * ARGV: process, channel, countsAll, keyJson
 * Reply: the ms that are left of a claim, or the waiter that has just got the lock, or 0 if there is nothing to
 *   do.
 * Atomic: the lock goes to one waiter, also where several processes look after it.
 */
export const handOnScript = defineScript({
  name: 'lock-hand-on',
  keys: ['fenceCounter', 'record', 'queue'],
  args: ['process', 'channel', 'countsAll', 'keyJson'],
  lua: /* lua */ `
local COUNT = 1
local held = redis.call('GET', record)
if held then return string.find(held, '\\t', -2, true) and math.max(redis.call('PTTL', record), 1) or 0 end
local waiters = redis.call('ZRANGE', queue, 0, -1)
if #waiters == 0 then return 0 end
${NOW_MS}${GRANTING}${HANDING_OVER}
local nextFence = fenceOf(1) -- fails if the fence is not a counter, before anything is written
beginHandOver(1, nextFence)
for _, waiter in ipairs(waiters) do
  if process ~= '-' and string.sub(waiter, 23) == process then redis.call('ZREM', queue, waiter) end
end
return handOver(1, nextFence) or 0`,
  decode: (reply): number | string =>
    typeof reply === 'number' || typeof reply === 'string' ? reply : unexpectedReply('lock-hand-on', reply),
});

/**
 * lock-publish: Asks whether the ACL lets scripts publish, which is how waiters learn of their turn.
 * KEYS: none
 * ARGV: channel
 * Reply: 1 or 0
 * Atomic: it is one command, which runs in a script because the ACL is asked there.
 */
export const publishScript = defineScript({
  name: 'lock-publish',
  keys: [],
  args: ['channel'],
  lua: /* lua */ `return type(redis.pcall('PUBLISH', channel, '')) == 'number' and 1 or 0`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('lock-publish', reply)),
});
