import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import { KEYS } from './secret.fragments.js';
import { orNull } from './view.script.js';
import type { CreateReply } from '../secret.backend.js';

/**
 * secret-create: Stores a secret.
 * KEYS: content, record
 * ARGV: proof, bytes, form, views, ttlMs, meta, maxFailures, secretLabel, tombstoneMs
 * Reply: the deadline (0: none), or -1 where the tag is taken
 * Atomic: content and record are there together, and never over another secret.
 */
export const createScript = defineScript({
  name: 'secret-create',
  keys: KEYS,
  args: ['proof', 'bytes', 'form', 'views', 'ttlMs', 'meta', 'maxFailures', 'secretLabel', 'tombstoneMs'],
  lua: /* lua */ `${NOW_MS}
local taken = redis.call('HMGET', record, 'proof', 'expires', 'v')
if taken[3] then return redis.error_reply('SYNCGUARD_NEWER') end
if taken[1] then return taken[1] == proof and tonumber(taken[2]) or -1 end
if redis.call('EXISTS', content, record) > 0 then
  return redis.error_reply('SYNCGUARD_FOREIGN the key is not a secret')
end

local expiresAtMs = tonumber(ttlMs) > 0 and nowMs + ttlMs or 0
redis.call('HSET', content, 'bytes', bytes, 'form', form, 'meta', meta)
redis.call('HSET', record, 'proof', proof, 'left', views, 'expires', expiresAtMs,
  'tombstone', tombstoneMs)
if tonumber(maxFailures) > 0 then redis.call('HSET', record, 'max', maxFailures) end
if secretLabel ~= '' then redis.call('HSET', record, 'label', secretLabel) end
if expiresAtMs > 0 then
  local ends = redis.pcall('PEXPIREAT', content, expiresAtMs)
  if type(ends) == 'table' then
    redis.call('UNLINK', content, record)
    return ends
  end
  redis.call('PEXPIREAT', record, expiresAtMs + tombstoneMs)
end
return expiresAtMs`,
  decode(reply): CreateReply {
    if (typeof reply !== 'number') return unexpectedReply('secret-create', reply);
    return reply < 0 ? 'conflict' : { expiresAtMs: orNull(reply, 0) };
  },
});
