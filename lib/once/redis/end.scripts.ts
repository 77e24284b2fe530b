import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import type { ForgetOnceResult, SettleOnceResult } from '../once.types.js';
import { LIVE, RECORD, SAVE, TELL, WAITERS } from './once.fragments.js';

/**
 * once-renew: Extends the lease of a run, also one that has lapsed and that nobody has taken over.
 * KEYS: record
 * ARGV: runNonce, leaseMs
 * Reply: 1, or 0 if the run has lost its key
 * Atomic: a run that was overtaken extends nothing.
 */
export const renewScript = defineScript({
  name: 'once-renew',
  keys: ['record'],
  args: ['runNonce', 'leaseMs'],
  lua: /* lua */ `${NOW_MS}${RECORD}${SAVE}
if not once or once.nonce ~= runNonce or once.state ~= 'running' then return 0 end
once.at = math.max(nowMs + leaseMs, once.at)
save()
return 1`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('once-renew', reply)),
});

/**
 * once-end: Ends a run, and wakes calls that wait for it.
 * KEYS: record
 * ARGV: runNonce, how, newForm, result, channel
 * Reply: when the run has ended in ms, or 0 if it has lost its key
 * Atomic: a result is stored only by the run that has the key, and once.
 */
export const endScript = defineScript({
  name: 'once-end',
  keys: ['record'],
  args: ['runNonce', 'how', 'newForm', 'result', 'channel'],
  lua: /* lua */ `${NOW_MS}${RECORD}${SAVE}${WAITERS}${TELL}
if not once and how == 'nothing' then return nowMs end
if not once or once.nonce ~= runNonce then return 0 end
if once.state ~= 'running' then return tonumber(once.at) end
if how == 'nothing' and once.attempt == '1' then
  redis.call('DEL', record)
else
  once.state, once.at = how == 'kept' and 'done' or 'failed', nowMs
  if how == 'nothing' then once.attempt = once.attempt - 1 end
  if how == 'kept' then once.form, once.result = newForm, result end
  save()
end
tell(how == 'kept')
return nowMs`,
  decode: (reply): number => (typeof reply === 'number' ? reply : unexpectedReply('once-end', reply)),
});

/**
 * once-settle: Stores the result of a run that is over.
 * KEYS: record
 * ARGV: settleNonce, newForm, result, channel
 * Reply: ok, not_found, running or already_done
 * Atomic: a result that is kept is never replaced.
 */
export const settleScript = defineScript({
  name: 'once-settle',
  keys: ['record'],
  args: ['settleNonce', 'newForm', 'result', 'channel'],
  lua: /* lua */ `${NOW_MS}${RECORD}${LIVE}${SAVE}${WAITERS}${TELL}
if not once then return 'not_found' end
if once.state == 'done' then return once.nonce == settleNonce and 'ok' or 'already_done' end
if isLive then return 'running' end
once.state, once.nonce, once.at, once.form, once.result = 'done', settleNonce, nowMs, newForm, result
save()
tell(true)
return 'ok'`,
  decode(reply): SettleOnceResult {
    if (reply === 'ok') return { ok: true };
    if (reply === 'not_found' || reply === 'running' || reply === 'already_done')
      return { ok: false, reason: reply };
    return unexpectedReply('once-settle', reply);
  },
});

/**
 * once-forget: Deletes a record.
 * KEYS: record
 * ARGV: force, channel
 * Reply: ok or running
 * Atomic: without force no run loses its key.
 */
export const forgetScript = defineScript({
  name: 'once-forget',
  keys: ['record'],
  args: ['force', 'channel'],
  lua: /* lua */ `${NOW_MS}${RECORD}${LIVE}${WAITERS}${TELL}
if isLive and force == '0' then return 'running' end
if not once then return 'ok' end
redis.call('DEL', record)
tell(true)
return 'ok'`,
  decode(reply): ForgetOnceResult {
    if (reply === 'ok') return { ok: true };
    return reply === 'running' ? { ok: false, reason: reply } : unexpectedReply('once-forget', reply);
  },
});
