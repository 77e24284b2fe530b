import { defineScript } from '../../script/define-script.js';
import { KEYS, STATE } from './secret.fragments.js';
import { decodeTell } from './view.script.js';
import type { PeekReply, StatusReply } from '../secret.backend.js';

const LOOK_OUTCOMES = ['live', 'burned', 'expired', 'leased'] as const;

/**
 * secret-peek: Reads the state without changing it.
 * KEYS: content, record
 * ARGV: none
 * Reply: the fields of `tell()`, with meta after `live`, or not_found
 * Atomic: record, content and time belong together.
 */
export const peekScript = defineScript({
  name: 'secret-peek',
  keys: KEYS,
  args: [],
  lua: /* lua */ `${STATE}
if state == 'not_found' then return state end
local reply = tell(state)
if state == 'live' then
  local meta = redis.call('HGET', content, 'meta')
  if not meta then return 'not_found' end
  table.insert(reply, meta)
end
return reply`,
  decode(reply): PeekReply {
    const facts = decodeTell('secret-peek', reply, LOOK_OUTCOMES);
    if (facts === 'not_found' || facts.outcome !== 'live') return facts;
    return { ...facts, meta: String((reply as unknown[])[10]) };
  },
});

/**
 * secret-status: Reads the state for the sender.
 * KEYS: content, record
 * ARGV: proof
 * Reply: the fields of `tell()`, or not_found
 * Atomic: record, content and time belong together.
 */
export const statusScript = defineScript({
  name: 'secret-status',
  keys: KEYS,
  args: ['proof'],
  lua: /* lua */ `${STATE}
if known ~= proof then return 'not_found' end
if (state == 'live' or state == 'leased') and redis.call('EXISTS', content) == 0 then return 'not_found' end
return tell(state)`,
  decode: (reply): StatusReply => decodeTell('secret-status', reply, LOOK_OUTCOMES),
});
