import { TIME_TOLERANCE_MS } from '../clock.js';
import { foreignValue } from '../redis/redis.errors.js';
import { defineScript, unexpectedReply } from '../script/define-script.js';
import { NOW_MS } from '../script/fragments.js';
import { FENCE_THRESHOLDS, type LockRecord } from './lock.values.js';

/** How long a record must be dead before `cleanupInIsLocked` may delete it: beyond any tolerance. */
export const CLEANUP_AFTER_MS = 2_000;

// A record is `{"lockId":"...","expiresAtMs":n,"acquiredAtMs":n,"key":"...","fence":"..."}` (seed 004). Ours
// stand in this order without spaces; those of other programs may not. A quote inside a user's key is escaped
// in JSON, so `"lockId":"` and `"expiresAtMs":` are found as fields only, never inside a key.
const OWNERSHIP = `
local function decode(json)
  local ok, fields = pcall(cjson.decode, json)
  return ok and type(fields) == 'table' and fields or {}
end

local function owns(json, id)
  if string.find(json, '"lockId":"' .. id .. '"', 1, true) then return true end
  return string.sub(json, 1, 11) ~= '{"lockId":"' and decode(json).lockId == id
end`;

const LIVENESS = `${NOW_MS}
local function expiryOf(json)
  return tonumber(string.match(json, '"expiresAtMs":(%d+)[,}]') or decode(json).expiresAtMs)
end

local function isDead(json, ageMs)
  local expiry = expiryOf(json)
  return not expiry or expiry <= nowMs - ageMs
end`;

// By a bare lockId the record's name is read from the index. Only the spec layout does that: it lives on one
// server, where a key need not be declared to be found (law 1 of docs/scripts.md).
const RECORD_FROM_INDEX = `
local record = redis.call('GET', index)
if not record then return -1 end`;

/** What an acquire came to. */
export type AcquireReply =
  | { readonly status: 'granted'; readonly fence: string; readonly expiresAtMs: number }
  | { readonly status: 'locked'; readonly remainingMs: number }
  | { readonly status: 'fence-overflow' };

const OWN_RECORD =
  /^\{"lockId":"[\w-]{22}","expiresAtMs":(\d+),"acquiredAtMs":\d+,"key":".*","fence":"(\d{15})"\}$/s;

/**
 * Takes a free lock. Replies the record itself, or what is left of the other's lock in ms, or -1 when the
 * fence counter is at its end. A re-sent call finds its own record and replies it again.
 */
export const acquireScript = defineScript({
  name: 'lock-acquire',
  keys: ['record', 'index', 'fenceCounter'],
  args: ['lockId', 'ttlMs', 'keyJson'],
  lua: `${OWNERSHIP}
${LIVENESS}

local held = redis.call('GET', record)
if held then
  if owns(held, lockId) then return held end
  local expiry = expiryOf(held)
  if not expiry then return redis.error_reply('SYNCGUARD_FOREIGN the record is not a lock') end
  if expiry > nowMs - ${TIME_TOLERANCE_MS} then
    local ttl = redis.call('PTTL', record)
    return ttl >= 0 and ttl or expiry + ${TIME_TOLERANCE_MS} - nowMs
  end
end

-- A counter that was lost starts from the clock, which is ahead of every fence it ever gave. In tenths of a ms: two
-- primaries after a split must not give one fence for grants of the same ms.
local last = redis.call('GET', fenceCounter) or '0'
if not string.find(last, '^%d+$') then return redis.error_reply('SYNCGUARD_FOREIGN the fence is not a counter') end
local fence = math.max(tonumber(last) + 1, time[1] * 10000 + math.floor(time[2] / 100))
if fence > ${Number(FENCE_THRESHOLDS.MAX)} then return -1 end

local json = string.format('{"lockId":"%s","expiresAtMs":%d,"acquiredAtMs":%d,"key":%s,"fence":"%015d"}',
  lockId, nowMs + ttlMs, nowMs, keyJson, fence)
redis.call('SET', fenceCounter, string.format('%d', fence))
redis.call('PSETEX', record, ttlMs, json)
redis.call('PSETEX', index, ttlMs, record)
return json`,
  decode(reply): AcquireReply {
    if (typeof reply === 'number')
      return reply < 0 ? { status: 'fence-overflow' } : { status: 'locked', remainingMs: reply };
    const [, expiresAtMs, fence] = (typeof reply === 'string' && OWN_RECORD.exec(reply)) || [];
    if (!expiresAtMs || !fence) return unexpectedReply('lock-acquire', reply);
    return { status: 'granted', fence, expiresAtMs: Number(expiresAtMs) };
  },
});

export type ReleaseCode = 'released' | 'mismatch' | 'not_found' | 'expired';

const RELEASE_CODES: Readonly<Record<number, ReleaseCode>> = {
  1: 'released',
  0: 'mismatch',
  [-1]: 'not_found',
  [-2]: 'expired',
};

const decodeRelease = (reply: unknown): ReleaseCode =>
  RELEASE_CODES[reply as number] ?? unexpectedReply('lock-release', reply);

// The owner first, then liveness, then the write.
const ownedAndLive = (none: string): string => `
local held = redis.call('GET', record)
if not held then return ${none} end
if not owns(held, lockId) then return 0 end
if isDead(held, ${TIME_TOLERANCE_MS}) then
  redis.call('DEL', record, index)
  return -2
end`;

const OWNED_AND_LIVE = ownedAndLive('-1');

/** The holder's own clock says that the lock is live: the server's need not be asked. */
export const releaseHeldScript = defineScript({
  name: 'lock-release-held',
  keys: ['record', 'index'],
  args: ['lockId'],
  lua: `${OWNERSHIP}
local held = redis.call('GET', record)
if not held then return -1 end
if not owns(held, lockId) then return 0 end
redis.call('DEL', record, index)
return 1`,
  decode: decodeRelease,
});

/** Ends a lock of the caller's: 1, or 0 another's, -1 none, -2 expired. */
export const releaseScript = defineScript({
  name: 'lock-release',
  keys: ['record', 'index'],
  args: ['lockId'],
  lua: `${OWNERSHIP}${LIVENESS}${OWNED_AND_LIVE}
redis.call('DEL', record, index)
return 1`,
  decode: decodeRelease,
});

// A bare lockId does not say whether its lock was live. So a release by it leaves a mark for a while: a re-sent call,
// whose first reply was lost, finds its own nonce there and says that it has released the lock.
const RELEASED_MARK_MS = 10_000;
const RELEASED_BEFORE = `redis.call('GET', mark) == nonce and 1 or -1`;
const MARKED_RELEASE = `${OWNERSHIP}${LIVENESS}${ownedAndLive(RELEASED_BEFORE)}
redis.call('DEL', record, index)
redis.call('PSETEX', mark, ${RELEASED_MARK_MS}, nonce)
return 1`;

/** By a bare lockId, whose record was found by {@link readIndexScript}. */
export const releaseFoundScript = defineScript({
  name: 'lock-release-found',
  keys: ['record', 'index', 'mark'],
  args: ['lockId', 'nonce'],
  lua: MARKED_RELEASE,
  decode: decodeRelease,
});

export const releaseByIdScript = defineScript({
  name: 'lock-release-by-id',
  keys: ['index', 'mark'],
  args: ['lockId', 'nonce'],
  lua: `
local record = redis.call('GET', index)
if not record then return ${RELEASED_BEFORE} end${MARKED_RELEASE}`,
  decode: decodeRelease,
});

export type ExtendReply =
  | { readonly code: 'extended'; readonly expiresAtMs: number }
  | { readonly code: Exclude<ReleaseCode, 'released'> };

function decodeExtend(reply: unknown): ExtendReply {
  if (Array.isArray(reply) && reply[0] === 1 && typeof reply[1] === 'number')
    return { code: 'extended', expiresAtMs: reply[1] };
  const code = RELEASE_CODES[reply as number];
  if (!code || code === 'released') return unexpectedReply('lock-extend', reply);
  return { code };
}

/** Replaces the life of the caller's lock: [1, new expiry], or the codes of release. Never brings one back. */
const EXTEND = `${OWNERSHIP}${LIVENESS}${OWNED_AND_LIVE}
local expiresAtMs = nowMs + ttlMs
local json, found = string.gsub(held, '"expiresAtMs":%d+([,}])', string.format('"expiresAtMs":%d%%1', expiresAtMs), 1)
if found == 0 then
  local fields = decode(held)
  fields.expiresAtMs = expiresAtMs
  json = cjson.encode(fields)
end
-- A full server refuses the first write of a script that may need memory. PEXPIRE needs none, and after it all may run.
redis.call('PEXPIRE', record, ttlMs)
redis.call('SET', record, json, 'KEEPTTL')
redis.call('PSETEX', index, ttlMs, record)
return {1, expiresAtMs}`;

export const extendScript = defineScript({
  name: 'lock-extend',
  keys: ['record', 'index'],
  args: ['lockId', 'ttlMs'],
  lua: EXTEND,
  decode: decodeExtend,
});

export const extendByIdScript = defineScript({
  name: 'lock-extend-by-id',
  keys: ['index'],
  args: ['lockId', 'ttlMs'],
  lua: RECORD_FROM_INDEX + EXTEND,
  decode: decodeExtend,
});

/** A record as it stands, and the server's time: whether it is live is decided in one place, `isLive()`. */
export interface ReadReply {
  readonly record: LockRecord;
  readonly nowMs: number;
}

function decodeRead(reply: unknown): ReadReply | null {
  if (reply === -1) return null;
  if (!Array.isArray(reply) || typeof reply[0] !== 'string' || typeof reply[1] !== 'number')
    return unexpectedReply('lock-read', reply);
  return { record: parseRecord(reply[0]), nowMs: reply[1] };
}

function parseRecord(json: string): LockRecord {
  try {
    const record = JSON.parse(json) as LockRecord | null;
    const texts = [record?.lockId, record?.key, record?.fence];
    if (record && texts.every((text) => typeof text === 'string') && Number.isFinite(record.expiresAtMs))
      return record;
  } catch {
    // Not JSON: told below, like every other value that is no lock.
  }
  throw foreignValue('the record is not a lock');
}

const READ = `${NOW_MS}
local held = redis.call('GET', record)
if not held then return -1 end
return {held, nowMs}`;

export const readScript = defineScript({
  name: 'lock-read',
  keys: ['record'],
  args: [],
  lua: READ,
  decode: decodeRead,
});

export const readByIdScript = defineScript({
  name: 'lock-read-by-id',
  keys: ['index'],
  args: [],
  lua: RECORD_FROM_INDEX + READ,
  decode: decodeRead,
});

/** The record's name as the index holds it: the client's `keyPrefix` stands in it too. */
export const readIndexScript = defineScript({
  name: 'lock-read-index',
  keys: ['index'],
  args: [],
  lua: `return redis.call('GET', index) or -1`,
  decode: (reply): string | null =>
    reply === -1 ? null : typeof reply === 'string' ? reply : unexpectedReply('lock-read-index', reply),
});

/** Deletes a record that is long dead, if it is still the one that was seen. Never a fence counter. */
export const cleanupScript = defineScript({
  name: 'lock-cleanup',
  keys: ['record', 'index'],
  args: ['lockId'],
  lua: `${OWNERSHIP}${LIVENESS}
local held = redis.call('GET', record)
if not held or not owns(held, lockId) or not isDead(held, ${CLEANUP_AFTER_MS}) then return 0 end
redis.call('DEL', record, index)
return 1`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('lock-cleanup', reply)),
});

export const lockScripts = [
  acquireScript,
  releaseHeldScript,
  releaseScript,
  releaseFoundScript,
  releaseByIdScript,
  extendScript,
  extendByIdScript,
  readScript,
  readByIdScript,
  readIndexScript,
  cleanupScript,
];
