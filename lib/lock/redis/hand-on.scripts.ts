import { GRANTING } from './lock.fragments.js';
import { HANDING_OVER } from './lock.queue.fragments.js';
import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/**
 * lock-hand-on: Hands a free lock to the first of its queue. The waiter that got it before has not taken it, so its
 * process is passed over.
 * KEYS: fenceCounter, record, queue
 * ARGV: channel, countsAll, keyJson
 * Reply: the ms that are left of a claim, or the waiter that has just got the lock, or 0 if there is nothing to
 *   do.
 * Atomic: the lock goes to one waiter, also where several processes look after it.
 */
export const handOnScript = defineScript({
  name: 'lock-hand-on',
  keys: ['fenceCounter', 'record', 'queue'],
  args: ['channel', 'countsAll', 'keyJson'],
  lua: /* lua */ `
local held = redis.call('GET', record)
if held then return string.find(held, '\\t', -2, true) and math.max(redis.call('PTTL', record), 1) or 0 end
${NOW_MS}${GRANTING}${HANDING_OVER}
local first = firstIn(queue)
if not first.waiter then return 0 end
local fence = fenceAfter(fenceCounter)
beginHandOver(queue, fenceCounter, fence)
return handOver(record, queue, keyJson, fence, nil, first) or 0`,
  decode: (reply): number | string =>
    typeof reply === 'number' || typeof reply === 'string' ? reply : unexpectedReply('lock-hand-on', reply),
});
