import { defineScript, unexpectedReply } from '../script/define-script.js';
import { NOW_MS } from '../script/fragments.js';
import type {
  BurnReply,
  CreateReply,
  PeekReply,
  SettleReply,
  StatusReply,
  ViewReply,
} from './secret.backend.js';
import type { NotShownReason, SecretStatus } from './secret.types.js';
import { MAX_LEASES } from './secret.values.js';

// A secret is two HASHes. `content`: `bytes`, `form` ('text' or 'bytes') and `meta` (JSON, or empty), all that
// must not outlive it; Redis itself drops it at the deadline. `record` outlives it as the tombstone:
//   proof    what its receipt is known by           left     views that remain, -1 without limit
//   expires  the deadline in ms, 0 without          leases   'viewTag:endMs;' of each pending view
//   viewed   when it was shown last                 view:<viewTag>  what remained after that view
//   released, burn  the last viewTag given back, the call that burned it: so that a re-sent call is known
// It is burned when no view is left and none is pending: a lease that lapses burns without a command.

const STATE = `${NOW_MS}
local fields = redis.call('HMGET', record, 'proof', 'left', 'expires', 'leases', 'viewed')
local known = fields[1]
local left, expiresAtMs = tonumber(fields[2] or 0), tonumber(fields[3] or 0)
if known and not (left and expiresAtMs and fields[2] and fields[3]) then
  return redis.error_reply('SYNCGUARD_FOREIGN the record is not a secret')
end

local pending, pendingCount, pendingUntilMs = '', 0, 0
for holder, endMs in string.gmatch(fields[4] or '', '([%w_-]+):(%d+);') do
  if tonumber(endMs) > nowMs then
    pending = pending .. holder .. ':' .. endMs .. ';'
    pendingCount = pendingCount + 1
    pendingUntilMs = math.max(pendingUntilMs, tonumber(endMs))
  end
end

local state = 'live'
if not known then state = 'not_found'
elseif left == 0 and pendingCount == 0 then state = 'burned'
elseif expiresAtMs > 0 and nowMs >= expiresAtMs then state = 'expired'
elseif left == 0 then state = 'leased' end`;

const ENDINGS = `
tombstoneMs = tonumber(tombstoneMs)

-- With views left it ends at its deadline; without, when the last pending view lapses.
local function setEnd(lapseMs)
  local endMs = left == 0 and lapseMs or expiresAtMs
  if endMs == 0 then
    redis.call('PERSIST', content)
    redis.call('PERSIST', record)
  else
    redis.call('PEXPIREAT', content, endMs)
    redis.call('PEXPIREAT', record, endMs + tombstoneMs)
  end
end

local function burn()
  redis.call('UNLINK', content)
  if tombstoneMs == 0 then
    redis.call('UNLINK', record)
  else
    redis.call('HSET', record, 'left', 0, 'leases', '')
    redis.call('PEXPIRE', record, tombstoneMs)
  end
end`;

const KEYS = ['content', 'record'] as const;
const NOT_SHOWN: ReadonlySet<string> = new Set<NotShownReason>(['not_found', 'burned', 'expired', 'leased']);

const isNotShown = (text: string): text is NotShownReason => NOT_SHOWN.has(text);
const viewsOf = (left: number): number | null => (left < 0 ? null : left);
const deadlineOf = (ms: number): number | null => (ms === 0 ? null : ms);

/** Replies the deadline (0: none), or -1: taken. */
export const createScript = defineScript({
  name: 'secret-create',
  keys: KEYS,
  args: ['proof', 'bytes', 'form', 'views', 'ttlMs', 'meta', 'tombstoneMs'],
  lua: `${NOW_MS}
local taken = redis.call('HMGET', record, 'proof', 'expires')
if taken[1] then return taken[1] == proof and tonumber(taken[2]) or -1 end
if redis.call('EXISTS', content, record) > 0 then
  return redis.error_reply('SYNCGUARD_FOREIGN the key is not a secret')
end

local expiresAtMs = tonumber(ttlMs) > 0 and nowMs + ttlMs or 0
redis.call('HSET', content, 'bytes', bytes, 'form', form, 'meta', meta)
redis.call('HSET', record, 'proof', proof, 'left', views, 'expires', expiresAtMs)
if expiresAtMs > 0 then
  redis.call('PEXPIREAT', content, expiresAtMs)
  redis.call('PEXPIREAT', record, expiresAtMs + tombstoneMs)
end
return expiresAtMs`,
  decode(reply): CreateReply {
    if (typeof reply !== 'number') return unexpectedReply('secret-create', reply);
    return reply < 0 ? 'conflict' : { expiresAtMs: deadlineOf(reply) };
  },
});

/** Replies {bytes, left, burned, expires, form, meta, replayed}, or why it is not shown. */
export const viewScript = defineScript({
  name: 'secret-view',
  keys: KEYS,
  args: ['viewTag', 'leaseMs', 'tombstoneMs'],
  binary: true,
  lua: `${STATE}
${ENDINGS}
leaseMs = tonumber(leaseMs)
local view = 'view:' .. viewTag

if state == 'burned' then
  return redis.call('HEXISTS', record, view) == 1 and 'burned-by-you' or state
end
if state == 'not_found' or state == 'expired' then return state end
local secret = redis.call('HMGET', content, 'bytes', 'form', 'meta')
if not secret[1] then return 'not_found' end

local function shown(remaining, burned, replayed)
  return {secret[1], remaining, burned, expiresAtMs, secret[2], secret[3], replayed}
end

local counted = redis.call('HGET', record, view)
if counted then return shown(tonumber(counted), 0, 1) end
if state == 'leased' then return state end
if left < 0 then
  redis.call('HSET', record, 'viewed', nowMs)
  return shown(left, 0, 0)
end
if leaseMs > 0 then
  if pendingCount >= ${MAX_LEASES} then return 'leased' end
  local lapseMs = nowMs + leaseMs
  if expiresAtMs > 0 then lapseMs = math.min(lapseMs, expiresAtMs) end
  pending = pending .. viewTag .. ':' .. lapseMs .. ';'
  pendingUntilMs = math.max(pendingUntilMs, lapseMs)
end

left = left - 1
redis.call('HSET', record, 'left', left, 'leases', pending, 'viewed', nowMs, view, left)
if left == 0 and pending == '' then
  burn()
  return shown(0, 1, 0)
end
if left == 0 then setEnd(pendingUntilMs) end
return shown(left, 0, 0)`,
  decode(reply): ViewReply {
    if (Buffer.isBuffer(reply)) {
      const reason = reply.toString('latin1');
      return reason === 'burned-by-you' || isNotShown(reason)
        ? reason
        : unexpectedReply('secret-view', reply);
    }
    if (!Array.isArray(reply) || !Buffer.isBuffer(reply[0])) return unexpectedReply('secret-view', reply);
    const [payload, left, burned, expires, form, meta, replayed] = reply as ViewReplyFields;
    return {
      payload,
      text: form.toString('latin1') === 'text',
      viewsRemaining: viewsOf(left),
      burned: burned === 1,
      expiresAtMs: deadlineOf(expires),
      meta: meta.toString(),
      replayed: replayed === 1,
    };
  },
});

type ViewReplyFields = [Buffer, number, number, number, Buffer, Buffer, number];

/** Replies {left, expires, meta}, or why it would not be shown. */
export const peekScript = defineScript({
  name: 'secret-peek',
  keys: KEYS,
  args: [],
  lua: `${STATE}
if state ~= 'live' then return state end
local meta = redis.call('HGET', content, 'meta')
return meta and {left, expiresAtMs, meta} or 'not_found'`,
  decode(reply): PeekReply {
    if (typeof reply === 'string' && isNotShown(reply)) return reply;
    if (!Array.isArray(reply)) return unexpectedReply('secret-peek', reply);
    const [left, expires, meta] = reply as [number, number, string];
    return { viewsRemaining: viewsOf(left), expiresAtMs: deadlineOf(expires), meta };
  },
});

const BURN_REPLIES: readonly unknown[] = [
  'burned',
  'burned-before',
  'expired',
  'not_found',
] satisfies BurnReply[];

/** Replies a {@link BurnReply}. An empty proof: by id. */
export const burnScript = defineScript({
  name: 'secret-burn',
  keys: KEYS,
  args: ['proof', 'burnId', 'tombstoneMs'],
  lua: `${STATE}
${ENDINGS}
if not known or (proof ~= '' and proof ~= known) then return 'not_found' end
if state == 'expired' then return state end
if state == 'burned' then
  return redis.call('HGET', record, 'burn') == burnId and 'burned' or 'burned-before'
end
if redis.call('HLEN', content) == 0 then return 'not_found' end
redis.call('HSET', record, 'burn', burnId)
burn()
return 'burned'`,
  decode: (reply): BurnReply =>
    BURN_REPLIES.includes(reply) ? (reply as BurnReply) : unexpectedReply('secret-burn', reply),
});

/** Replies {state, left, expires, viewed}, or not_found. */
export const statusScript = defineScript({
  name: 'secret-status',
  keys: KEYS,
  args: ['proof'],
  lua: `${STATE}
if known ~= proof then return 'not_found' end
if (state == 'live' or state == 'leased') and redis.call('EXISTS', content) == 0 then return 'not_found' end
return {state, left, expiresAtMs, tonumber(fields[5] or 0)}`,
  decode(reply): StatusReply {
    if (reply === 'not_found') return reply;
    if (!Array.isArray(reply)) return unexpectedReply('secret-status', reply);
    const [state, left, expires, viewed] = reply as [
      Extract<SecretStatus, { ok: true }>['state'],
      number,
      number,
      number,
    ];
    return {
      state,
      viewsRemaining: viewsOf(left),
      expiresAtMs: deadlineOf(expires),
      viewedAtMs: viewed === 0 ? null : viewed,
    };
  },
});

function decodeSettle(reply: unknown): SettleReply {
  if (reply === 'not_found') return reply;
  if (!Array.isArray(reply)) return unexpectedReply('secret-settle', reply);
  const [left, burned] = reply as [number, number];
  return { viewsRemaining: viewsOf(left), burned: burned === 1 };
}

// Takes this view out of the pending ones. A secret without a number of views has none: there is nothing to
// count or to give back.
const TAKE_LEASE = `${STATE}
${ENDINGS}
redis.call('HLEN', content) -- a key of another type fails here, before anything is written
local view = 'view:' .. viewTag
if state == 'live' and left < 0 then return {left, 0} end
local counted = known and redis.call('HGET', record, view)
local mine, others, othersUntilMs = false, '', 0
for holder, endMs in string.gmatch(pending, '([%w_-]+):(%d+);') do
  if holder == viewTag then
    mine = true
  else
    others = others .. holder .. ':' .. endMs .. ';'
    othersUntilMs = math.max(othersUntilMs, tonumber(endMs))
  end
end`;

/** Counts a pending view: {left, burned}. One that was counted already stays so. */
export const confirmScript = defineScript({
  name: 'secret-confirm',
  keys: KEYS,
  args: ['viewTag', 'tombstoneMs'],
  lua: `${TAKE_LEASE}
if not counted then return 'not_found' end
if not mine then return {left, state == 'burned' and 1 or 0} end
if left == 0 and others == '' then
  burn()
  return {0, 1}
end
redis.call('HSET', record, 'leases', others)
if left == 0 then setEnd(othersUntilMs) end
return {left, 0}`,
  decode: decodeSettle,
});

/** Gives a pending view back: {left, 0}. */
export const releaseScript = defineScript({
  name: 'secret-release',
  keys: KEYS,
  args: ['viewTag', 'tombstoneMs'],
  lua: `${TAKE_LEASE}
if not mine then
  local again = known and not counted and redis.call('HGET', record, 'released') == viewTag
  return again and {left, 0} or 'not_found'
end
left = left + 1
redis.call('HDEL', record, view)
redis.call('HSET', record, 'left', left, 'leases', others, 'released', viewTag)
setEnd(0)
return {left, 0}`,
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
