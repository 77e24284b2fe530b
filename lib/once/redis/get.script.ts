import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import { ONCE_STATES } from '../once.backend.js';
import type { OnceRecord } from '../once.types.js';
import { LIVE, RECORD } from './once.fragments.js';

/**
 * once-get: Returns what is known of a key.
 * KEYS: record
 * ARGV: none
 * Reply: state, attempt, when it started and when the record ends in ms, and the key, or not_found
 * Atomic: the state is that of one moment.
 */
export const getScript = defineScript({
  name: 'once-get',
  keys: ['record'],
  args: [],
  lua: /* lua */ `${NOW_MS}${RECORD}${LIVE}
if not once then return 'not_found' end
local state = once.state
if state == 'running' and not isLive then state = once.crash == 'refuse' and 'unknown' or 'failed' end
return {state, tonumber(once.attempt), tonumber(once.started), once.at + once.keep, once.key}`,
  decode(reply): OnceRecord | null {
    if (reply === 'not_found') return null;
    const [given, attempt, startedAtMs, expiresAtMs, key] = (Array.isArray(reply) ? reply : []) as [
      ...[unknown, number, number, number, unknown],
    ];
    const state = ONCE_STATES.find((each) => each === given);
    if (!state || typeof key !== 'string') return unexpectedReply('once-get', reply);
    return { key, state, attempt, startedAtMs, expiresAtMs };
  },
});
