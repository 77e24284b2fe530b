import { defineScript } from '../../script/define-script.js';
import { ENDINGS, KEYS, LEASING, STATE } from './secret.fragments.js';
import { decodeTell } from './view.script.js';
import type { SettleReply } from '../secret.backend.js';

const decodeSettle = (reply: unknown): SettleReply =>
  decodeTell('secret-settle', reply, ['settled', 'cut_off', 'burned']);

// Removes this view from the pending ones. A secret that counts neither views nor failures has no pending views, so
// there is nothing to settle.
const TAKE_LEASE = /* lua */ `${STATE}
${ENDINGS}${LEASING}
redis.call('HLEN', content) -- A key of another type fails here, before anything is written.
if not known then return 'not_found' end
if state == 'live' and left < 0 and max == 0 then return tell('settled') end
local view = 'view:' .. viewTag
local mine, at = leaseOf()
if mine then
  table.remove(pending, at)
  triesPending = triesPending - tries(mine.calls)
end
local isCut = string.find(cut, viewTag, 1, true)

-- What became of a view that is not pending and was not settled in this way before.
local function lost()
  if isCut then return tell('cut_off') end
  return ended == 'burned' and tell('burned') or 'not_found'
end`;

/**
 * secret-confirm: Counts a pending view. A view that was counted before stays counted.
 * KEYS: content, record
 * ARGV: viewTag
 * Reply: the fields of `tell()`, after `cut_off` if `burn()` has ended this view and after `burned` if it has ended the
 *   secret, or not_found
 * Atomic: a pending view is settled once, and the last one burns the secret.
 */
export const confirmScript = defineScript({
  name: 'secret-confirm',
  keys: KEYS,
  args: ['viewTag'],
  lua: /* lua */ `${TAKE_LEASE}
if not mine then
  local counted = redis.call('HEXISTS', record, view) == 1 or redis.call('HGET', record, 'confirmed') == viewTag
  return counted and not isCut and not failureOf() and tell('settled') or lost()
end
if left == 0 and #pending == 0 then
  burn('used')
else
  save(true)
  if left < 0 then redis.call('HSET', record, 'confirmed', viewTag) end
end
return tell('settled')`,
  decode: decodeSettle,
});

/**
 * secret-release: Releases a pending view. With `maxFailures` each call that was shown this view is a failure,
 * which may burn the secret.
 * KEYS: content, record
 * ARGV: viewTag
 * Reply: as secret-confirm
 * Atomic: a pending view is settled once, and its failures are counted in the same step.
 */
export const releaseScript = defineScript({
  name: 'secret-release',
  keys: KEYS,
  args: ['viewTag'],
  lua: /* lua */ `${TAKE_LEASE}
if not mine then
  if max > 0 then return failureOf() == 'released' and tell('settled') or lost() end
  local again = redis.call('HEXISTS', record, view) == 0 and redis.call('HGET', record, 'released') == viewTag
  return again and tell('settled') or lost()
end
used = used - 1
failures = failures + tries(mine.calls)
if left >= 0 then left = left + 1 end
redis.call('HDEL', record, view)
if max > 0 and failures >= max then
  burn('failures')
else
  save(true)
end
if not ended or tombstoneMs > 0 then
  if max > 0 then redis.call('HSET', record, 'failed:' .. viewTag, 'released')
  else redis.call('HSET', record, 'released', viewTag) end
end
return tell('settled')`,
  decode: decodeSettle,
});
