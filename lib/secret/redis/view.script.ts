import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { ENDINGS, KEYS, LEASING, STATE } from './secret.fragments.js';
import type { OutcomeReply, ViewReply } from '../secret.backend.js';
import type { SecretEnd } from '../secret.types.js';
import { MAX_LEASES } from '../secret.validate.js';

const OUTCOMES = ['shown', 'burned', 'burned_by_you', 'expired', 'leased', 'failed', 'lease_needed'] as const;

type Text = string | Buffer;
type TellFields = [Text, number, number, number, number, number, Text, number, Text, number];

export const orNull = (value: number, none: number): number | null => (value === none ? null : value);

/** Decodes not_found, or the ten fields of `tell()`, with which every other reply about a secret begins. */
export function decodeTell<Outcome extends string>(
  script: string,
  reply: unknown,
  outcomes: readonly Outcome[],
): OutcomeReply<Outcome> | 'not_found' {
  if (!Array.isArray(reply))
    return String(reply) === 'not_found' ? 'not_found' : unexpectedReply(script, reply);
  const [told, left, used, viewed, expires, failuresLeft, ended, endedAt, label, cut] = reply as TellFields;
  const outcome = outcomes.find((each) => each === String(told));
  if (!outcome || reply.length < 10) return unexpectedReply(script, reply);
  return {
    outcome,
    viewsRemaining: orNull(left, -1),
    viewsUsed: used,
    viewedAtMs: orNull(viewed, 0),
    expiresAtMs: orNull(expires, 0),
    ...(failuresLeft < 0 ? {} : { failuresRemaining: failuresLeft }),
    ended: (String(ended) || null) as SecretEnd | null,
    endedAtMs: orNull(endedAt, 0),
    label: String(label),
    leasedAtBurn: cut,
  } as OutcomeReply<Outcome>;
}

/**
 * secret-view: Shows a secret.
 * KEYS: content, record
 * ARGV: viewTag, callId, leaseMs
 * Reply: the fields of `tell()`, with bytes, form, meta and replayed after `shown`, or not_found
 * Atomic: of any number of readers, no more than the views that are left get the payload.
 */
export const viewScript = defineScript({
  name: 'secret-view',
  keys: KEYS,
  args: ['viewTag', 'callId', 'leaseMs'],
  binary: true,
  alone: true,
  lua: /* lua */ `${STATE}
${ENDINGS}${LEASING}
leaseMs = tonumber(leaseMs)
local view = 'view:' .. viewTag

if state == 'not_found' then return state end
if state == 'burned' then
  return tell(redis.call('HEXISTS', record, view) == 1 and 'burned_by_you' or state)
end
if state == 'expired' then return tell(state) end
if max > 0 and leaseMs == 0 then return tell('lease_needed') end
local secret = redis.call('HMGET', content, 'bytes', 'form', 'meta')
if not secret[1] then return 'not_found' end

local function shown(remaining, replayed)
  local reply = tell('shown', remaining)
  for _, value in ipairs({secret[1], secret[2], secret[3], replayed}) do table.insert(reply, value) end
  return reply
end

if failureOf() then return tell('failed') end
local counted = tonumber(redis.call('HGET', record, view) or nil)
local mine = leaseOf()
if mine and max > 0 then
  -- Each call that is shown the secret is a try, except for a second send of the same call.
  if not string.find(',' .. mine.calls, ',' .. callId .. ',', 1, true) then
    if failures + triesPending >= max then return tell('leased') end
    mine.calls = mine.calls .. callId .. ','
    triesPending = triesPending + 1
    viewedAtMs = nowMs
    save(full())
  end
  return shown(counted or left, 1)
end
if counted then return shown(counted, 1) end
if max > 0 and redis.call('HGET', record, 'confirmed') == viewTag then return shown(left, 1) end
if state == 'leased' then return tell(state) end

local leasing = leaseMs > 0 and (left > 0 or max > 0)
if leasing and #pending >= ${MAX_LEASES} then return tell('leased') end
if left < 0 and not leasing then
  viewedAtMs = nowMs
  if redis.call('HGET', record, 'last') ~= viewTag then used = used + 1 end
  redis.call('HDEL', record, '')
  redis.call('HSET', record, 'viewed', viewedAtMs, 'used', used, 'last', viewTag)
  return shown(left, 0)
end

used, viewedAtMs = used + 1, nowMs
if left > 0 then left = left - 1 end
if leasing then
  local lapseMs = nowMs + leaseMs
  if expiresAtMs > 0 then lapseMs = math.min(lapseMs, expiresAtMs) end
  table.insert(pending, {holder = viewTag, endMs = lapseMs, calls = max > 0 and callId .. ',' or ''})
  if max > 0 then triesPending = triesPending + 1 end
end
local remaining = left
if left == 0 and #pending == 0 then burn('used') else save(full()) end
if remaining >= 0 and not (ended and tombstoneMs == 0) then redis.call('HSET', record, view, remaining) end
return shown(remaining, 0)`,
  decode(reply): ViewReply {
    const facts = decodeTell('secret-view', reply, OUTCOMES);
    if (facts === 'not_found' || facts.outcome !== 'shown') return facts;
    const [payload, form, meta, replayed] = (reply as unknown[]).slice(10) as [
      Buffer,
      Buffer,
      Buffer,
      number,
    ];
    if (!Buffer.isBuffer(payload)) return unexpectedReply('secret-view', reply);
    const text = form.toString('latin1') === 'text';
    return Object.assign(facts, { payload, text, meta: meta.toString(), replayed: replayed === 1 });
  },
});
