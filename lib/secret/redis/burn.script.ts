import { defineScript } from '../../script/define-script.js';
import { ENDINGS, KEYS, STATE } from './secret.fragments.js';
import { decodeTell } from './view.script.js';
import type { BurnReply } from '../secret.backend.js';

/**
 * secret-burn: Burns a secret.
 * KEYS: content, record
 * ARGV: proof (empty: a call by id), burnId, forget ('1': without a tombstone)
 * Reply: the fields of `tell()`, or not_found
 * Atomic: after the reply no reader gets the payload, and no view that was pending is counted as confirmed.
 */
export const burnScript = defineScript({
  name: 'secret-burn',
  keys: KEYS,
  args: ['proof', 'burnId', 'forget'],
  lua: /* lua */ `${STATE}
${ENDINGS}
if not known or (proof ~= '' and proof ~= known) then return 'not_found' end
if state == 'expired' then return tell(state) end
if state == 'burned' then
  return tell(redis.call('HGET', record, 'burn') == burnId and 'burned' or 'burned_before')
end
if redis.call('HLEN', content) == 0 then return 'not_found' end
if forget == '1' then tombstoneMs = 0 end
burn('burned')
if tombstoneMs > 0 then redis.call('HSET', record, 'burn', burnId) end
return tell('burned')`,
  decode: (reply): BurnReply => decodeTell('secret-burn', reply, ['burned', 'burned_before', 'expired']),
});
