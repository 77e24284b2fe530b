import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import type {
  BurnReply,
  CreateReply,
  PeekReply,
  SecretFacts,
  SettleReply,
  StatusReply,
  ViewReply,
} from '../secret.backend.js';
import type { SecretEnd } from '../secret.types.js';
import { MAX_LEASES } from '../secret.validate.js';

// A secret is two HASHes. `content` has `bytes`, `form` ('text' or 'bytes') and `meta` (JSON, or empty). Redis deletes it
// at the deadline. `record` stays longer, as the tombstone:
//   proof    the secret part of the receipt         left     views that remain, -1 without a limit
//   expires  the deadline in ms, 0 without one      leases   'viewTag:endMs:calls;' of each pending view
//   used     views counted or pending               viewed   when it was last shown
//   max      maxFailures, 0 without                 failures  the calls of released leases, and of lapsed ones noted
//   ended    'how:atMs' of its burn                 label    for events
//   view:<viewTag>  views remaining after it        failed:<viewTag>  'released' or 'lapsed'
//   released, confirmed, last  the last viewTag that was released, confirmed, or counted without a limit of views
//   burn     the burnId of the call that burned it. These four let a second send of a call be recognised.
// `calls` are the calls that were shown a pending view, each 'callId,'. They are stored only where failures are counted,
// because each is a try, and a failure once its lease was released or has lapsed. A secret is burned when no view is left
// and none is pending, or when `failures` reaches `max`. A lapsing lease may burn it without a command. STATE derives that
// from the record.

const STATE = `${NOW_MS}
local fields = redis.call('HMGET', record, 'proof', 'left', 'expires', 'leases', 'used', 'viewed', 'max', 'failures',
  'ended', 'label')
local known, label = fields[1], fields[10] or ''
local left, expiresAtMs = tonumber(fields[2] or 0), tonumber(fields[3] or 0)
if known and not (left and expiresAtMs and fields[2] and fields[3]) then
  return redis.error_reply('SYNCGUARD_FOREIGN the record is not a secret')
end
local used, viewedAtMs = tonumber(fields[5] or 0), tonumber(fields[6] or 0)
local max, failures = tonumber(fields[7] or 0), tonumber(fields[8] or 0)

local function tries(calls) return select(2, string.gsub(calls, ',', '')) end

local pending, lapsed, triesPending, lapsedAtMs = {}, {}, 0, 0
for holder, endMs, calls in string.gmatch(fields[4] or '', '([%w_-]+):(%d+):([%w_,-]*);') do
  local lease = {holder = holder, endMs = tonumber(endMs), calls = calls}
  if lease.endMs > nowMs then
    table.insert(pending, lease)
    triesPending = triesPending + tries(calls)
  else
    table.insert(lapsed, lease)
    failures = failures + tries(calls)
    lapsedAtMs = math.max(lapsedAtMs, lease.endMs)
  end
end

local ended, endedAtMs = string.match(fields[9] or '', '^(%a+):(%d+)$')
if known and not ended then
  if max > 0 and failures >= max then ended = 'failures'
  elseif left == 0 and #pending == 0 then ended = 'used' end
  endedAtMs = lapsedAtMs
end
if ended then left = 0 end

local function full() return left == 0 or (max > 0 and failures + triesPending >= max) end

local state = 'live'
if not known then state = 'not_found'
elseif ended then state = 'burned'
elseif expiresAtMs > 0 and nowMs >= expiresAtMs then state = 'expired'
elseif full() then state = 'leased' end

local function tell(outcome, remaining)
  local failuresLeft = max > 0 and math.max(0, max - failures) or -1
  return {outcome, remaining or left, used, viewedAtMs, expiresAtMs, failuresLeft, ended or '',
    ended and tonumber(endedAtMs) or 0, label}
end`;

const YEAR_MS = 365 * 86_400_000;

// A full server refuses a script at its first write, if that needs memory, and at no later one. So the first write in
// the scripts with ENDINGS is always one that needs none (HDEL or UNLINK, and the HDEL of a field '' where there is
// nothing to delete). Secrets can be viewed and burned on a full server, but not created.
const ENDINGS = `
tombstoneMs = tonumber(tombstoneMs)

-- Returns when the tombstone is deleted: tombstoneMs after the end, or at the deadline if that is later, so that
-- anyone who follows the link learns how the secret ended. A deadline extends it to a year after the end at most.
-- With a tombstoneMs of 0 there is no tombstone, and the record is deleted at the end.
local function tombstoneEndMs(endMs)
  if tombstoneMs == 0 then return endMs end
  return math.max(endMs + tombstoneMs, math.min(expiresAtMs, endMs + ${YEAR_MS}))
end

-- Records the failures of lapsed leases, which are removed from the record.
local function noteLapsed()
  for _, lease in ipairs(lapsed) do
    if lease.calls ~= '' then redis.call('HSET', record, 'failed:' .. lease.holder, 'lapsed') end
  end
end

local function burn(how)
  ended, endedAtMs, left = how, nowMs, 0
  redis.call('UNLINK', content)
  if tombstoneMs == 0 then
    redis.call('UNLINK', record)
  else
    redis.call('PEXPIREAT', record, tombstoneEndMs(nowMs))
    redis.call('HSET', record, 'left', 0, 'leases', '', 'used', used, 'viewed', viewedAtMs, 'failures', failures,
      'ended', how .. ':' .. nowMs)
    noteLapsed()
  end
end`;

// What scripts need that take or settle pending views.
const LEASING = `
-- Sets when the keys end: at the deadline, or when the last pending view lapses if no further view is
-- possible.
local function setEnd()
  local endMs = expiresAtMs
  if full() and #pending > 0 then
    endMs = 0
    for _, lease in ipairs(pending) do endMs = math.max(endMs, lease.endMs) end
  end
  if endMs == 0 then
    redis.call('PERSIST', content)
    redis.call('PERSIST', record)
  else
    redis.call('PEXPIREAT', content, endMs)
    redis.call('PEXPIREAT', record, tombstoneEndMs(endMs))
  end
end

local function save()
  local leases = {}
  for i, lease in ipairs(pending) do leases[i] = lease.holder .. ':' .. lease.endMs .. ':' .. lease.calls .. ';' end
  redis.call('HDEL', record, '')
  redis.call('HSET', record, 'left', left, 'leases', table.concat(leases), 'used', used, 'viewed', viewedAtMs,
    'failures', failures)
  noteLapsed()
end

local function failureOf()
  for _, lease in ipairs(lapsed) do
    if lease.holder == viewTag and lease.calls ~= '' then return 'lapsed' end
  end
  return max > 0 and redis.call('HGET', record, 'failed:' .. viewTag)
end

local function leaseOf()
  for at, lease in ipairs(pending) do
    if lease.holder == viewTag then return lease, at end
  end
end`;

const KEYS = ['content', 'record'] as const;

const viewsOf = (left: number): number | null => (left < 0 ? null : left);
const timeOf = (ms: number): number | null => (ms === 0 ? null : ms);

type Text = string | Buffer;
type TellFields = [Text, number, number, number, number, number, Text, number, Text];

/** Decodes a reply of `tell()`. `rest` is what follows it. */
function decodeTell<Outcome extends string>(
  script: string,
  reply: unknown,
  outcomes: readonly Outcome[],
): SecretFacts & { outcome: Outcome; rest: unknown[] } {
  if (!Array.isArray(reply) || reply.length < 9) return unexpectedReply(script, reply);
  const [outcome, left, used, viewed, expires, failuresLeft, ended, endedAt, label] = reply as TellFields;
  if (!outcomes.includes(String(outcome) as Outcome)) return unexpectedReply(script, reply);
  return {
    outcome: String(outcome) as Outcome,
    viewsRemaining: viewsOf(left),
    viewsUsed: used,
    viewedAtMs: timeOf(viewed),
    expiresAtMs: timeOf(expires),
    failuresRemaining: viewsOf(failuresLeft),
    ended: (String(ended) || null) as SecretEnd | null,
    endedAtMs: timeOf(endedAt),
    label: String(label),
    rest: reply.slice(9) as unknown[],
  };
}

function decodeFacts<Outcome extends string>(
  script: string,
  reply: unknown,
  outcomes: readonly Outcome[],
): (SecretFacts & { outcome: Outcome }) | 'not_found' {
  if (reply === 'not_found') return reply;
  const { rest: _rest, ...facts } = decodeTell(script, reply, outcomes);
  return facts;
}

/** Stores a secret. Replies the deadline (0: none), or -1 where the tag is taken. */
export const createScript = defineScript({
  name: 'secret-create',
  keys: KEYS,
  args: ['proof', 'bytes', 'form', 'views', 'ttlMs', 'meta', 'maxFailures', 'secretLabel', 'tombstoneMs'],
  lua: `${NOW_MS}
local taken = redis.call('HMGET', record, 'proof', 'expires')
if taken[1] then return taken[1] == proof and tonumber(taken[2]) or -1 end
if redis.call('EXISTS', content, record) > 0 then
  return redis.error_reply('SYNCGUARD_FOREIGN the key is not a secret')
end

local expiresAtMs = tonumber(ttlMs) > 0 and nowMs + ttlMs or 0
redis.call('HSET', content, 'bytes', bytes, 'form', form, 'meta', meta)
redis.call('HSET', record, 'proof', proof, 'left', views, 'expires', expiresAtMs)
if tonumber(maxFailures) > 0 then redis.call('HSET', record, 'max', maxFailures) end
if secretLabel ~= '' then redis.call('HSET', record, 'label', secretLabel) end
if expiresAtMs > 0 then
  redis.call('PEXPIREAT', content, expiresAtMs)
  redis.call('PEXPIREAT', record, expiresAtMs + tombstoneMs)
end
return expiresAtMs`,
  decode(reply): CreateReply {
    if (typeof reply !== 'number') return unexpectedReply('secret-create', reply);
    return reply < 0 ? 'conflict' : { expiresAtMs: timeOf(reply) };
  },
});

const VIEW_OUTCOMES = [
  'shown',
  'burned',
  'burned_by_you',
  'expired',
  'leased',
  'failed',
  'lease_needed',
] as const;

/** Shows a secret. Replies the fields of `tell()`, with {bytes, form, meta, replayed} after `shown`, or not_found. */
export const viewScript = defineScript({
  name: 'secret-view',
  keys: KEYS,
  args: ['viewTag', 'callId', 'leaseMs', 'tombstoneMs'],
  binary: true,
  lua: `${STATE}
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
    save()
    if full() then setEnd() end
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
if left == 0 and #pending == 0 then burn('used') else save() end
if remaining >= 0 and not (ended and tombstoneMs == 0) then redis.call('HSET', record, view, remaining) end
if not ended and full() then setEnd() end
return shown(remaining, 0)`,
  decode(reply): ViewReply {
    if (Buffer.isBuffer(reply) && reply.toString('latin1') === 'not_found') return 'not_found';
    const { rest, outcome, ...facts } = decodeTell('secret-view', reply, VIEW_OUTCOMES);
    if (outcome !== 'shown') return { outcome, ...facts };
    const [payload, form, meta, replayed] = rest as [Buffer, Buffer, Buffer, number];
    if (!Buffer.isBuffer(payload)) return unexpectedReply('secret-view', reply);
    const text = form.toString('latin1') === 'text';
    return { outcome, ...facts, payload, text, meta: meta.toString(), replayed: replayed === 1 };
  },
});

const LOOK_OUTCOMES = ['live', 'burned', 'expired', 'leased'] as const;

/** Reads the state without changing it. Replies the fields of `tell()`, with {meta} after `live`, or not_found. */
export const peekScript = defineScript({
  name: 'secret-peek',
  keys: KEYS,
  args: [],
  lua: `${STATE}
if state == 'not_found' then return state end
local reply = tell(state)
if state == 'live' then
  local meta = redis.call('HGET', content, 'meta')
  if not meta then return 'not_found' end
  table.insert(reply, meta)
end
return reply`,
  decode(reply): PeekReply {
    if (reply === 'not_found') return reply;
    const { rest, outcome, ...facts } = decodeTell('secret-peek', reply, LOOK_OUTCOMES);
    return outcome === 'live' ? { outcome, ...facts, meta: String(rest[0]) } : { outcome, ...facts };
  },
});

/** Burns a secret. An empty proof stands for a call by id. Replies the fields of `tell()`, or not_found. */
export const burnScript = defineScript({
  name: 'secret-burn',
  keys: KEYS,
  args: ['proof', 'burnId', 'tombstoneMs'],
  lua: `${STATE}
${ENDINGS}
if not known or (proof ~= '' and proof ~= known) then return 'not_found' end
if state == 'expired' then return tell(state) end
if state == 'burned' then
  return tell(redis.call('HGET', record, 'burn') == burnId and 'burned' or 'burned_before')
end
if redis.call('HLEN', content) == 0 then return 'not_found' end
burn('burned')
if tombstoneMs > 0 then redis.call('HSET', record, 'burn', burnId) end
return tell('burned')`,
  decode: (reply): BurnReply => decodeFacts('secret-burn', reply, ['burned', 'burned_before', 'expired']),
});

/** Reads the state for the sender. Replies the fields of `tell()`, or not_found. */
export const statusScript = defineScript({
  name: 'secret-status',
  keys: KEYS,
  args: ['proof'],
  lua: `${STATE}
if known ~= proof then return 'not_found' end
if (state == 'live' or state == 'leased') and redis.call('EXISTS', content) == 0 then return 'not_found' end
return tell(state)`,
  decode: (reply): StatusReply => decodeFacts('secret-status', reply, LOOK_OUTCOMES),
});

const decodeSettle = (reply: unknown): SettleReply => decodeFacts('secret-settle', reply, ['settled']);

// Removes this view from the pending ones. A secret that counts neither views nor failures has no pending
// views, so there is nothing to settle.
const TAKE_LEASE = `${STATE}
${ENDINGS}${LEASING}
redis.call('HLEN', content) -- A key of another type fails here, before anything is written.
if not known then return 'not_found' end
if state == 'live' and left < 0 and max == 0 then return tell('settled') end
local view = 'view:' .. viewTag
local mine, at = leaseOf()
if mine then
  table.remove(pending, at)
  triesPending = triesPending - tries(mine.calls)
end`;

/** Counts a pending view. A view that was counted before stays counted. Replies the fields of `tell()`, or not_found. */
export const confirmScript = defineScript({
  name: 'secret-confirm',
  keys: KEYS,
  args: ['viewTag', 'tombstoneMs'],
  lua: `${TAKE_LEASE}
if not mine then
  local counted = redis.call('HEXISTS', record, view) == 1 or redis.call('HGET', record, 'confirmed') == viewTag
  return counted and not failureOf() and tell('settled') or 'not_found'
end
if left == 0 and #pending == 0 then
  burn('used')
else
  save()
  if left < 0 then redis.call('HSET', record, 'confirmed', viewTag) end
  setEnd()
end
return tell('settled')`,
  decode: decodeSettle,
});

/**
 * Releases a pending view. With `maxFailures` each call that was shown this view is a failure, which may burn the secret.
 * Replies the fields of `tell()`, or not_found.
 */
export const releaseScript = defineScript({
  name: 'secret-release',
  keys: KEYS,
  args: ['viewTag', 'tombstoneMs'],
  lua: `${TAKE_LEASE}
if not mine then
  if max > 0 then return failureOf() == 'released' and tell('settled') or 'not_found' end
  local again = redis.call('HEXISTS', record, view) == 0 and redis.call('HGET', record, 'released') == viewTag
  return again and tell('settled') or 'not_found'
end
used = used - 1
failures = failures + tries(mine.calls)
if left >= 0 then left = left + 1 end
redis.call('HDEL', record, view)
if max > 0 and failures >= max then
  burn('failures')
else
  save()
  setEnd()
end
if not ended or tombstoneMs > 0 then
  if max > 0 then redis.call('HSET', record, 'failed:' .. viewTag, 'released')
  else redis.call('HSET', record, 'released', viewTag) end
end
return tell('settled')`,
  decode: decodeSettle,
});

export const secretScripts = [
  createScript,
  viewScript,
  peekScript,
  burnScript,
  statusScript,
  confirmScript,
  releaseScript,
];
