import { foreignValue } from '../../redis/redis.errors.js';
import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import { EXPIRY, LIVENESS, OWNERSHIP, QUEUED } from './lock.fragments.js';
import type { LockRecord } from '../lock.record.js';
import {
  decodeExtend,
  EXTENDING,
  type ExtendReply,
  handOnScript,
  publishScript,
  RELEASE_CODES,
  type ReleaseCode,
  scriptsFor,
} from './lock.scripts.js';

/** How long a record must have been expired before `cleanupInIsLocked` may delete it. It exceeds every tolerance. */
export const CLEANUP_AFTER_MS = 2_000;

// A caller that knows nothing but the lockId needs the name of the record, which the index has. Only the spec layout
// reads both in one script: it is used on one server, where a script can reach a key that is not in KEYS (law 1 of
// docs/scripts.md).
const RECORD_FROM_INDEX = `
local record = redis.call('GET', index)
if not record then return -1 end`;

// Checks the owner first and the expiry second, before any write. A lock that has waiters, or whose grant has several
// keys, needs more keys than the caller knows. Only its record names them. So the script replies with the record, and
// the caller runs the script that declares all of these keys.
const ownedAndLive = (none: string): string => `
local held = redis.call('GET', record)
if not held then return ${none} end
if not owns(held, lockId) then return 0 end
if isDead(held) then
  redis.call('DEL', record, index)
  return -2
end
if isQueuedFor(held) or string.find(held, ',"keys":[', 1, true) then return held end`;

/** An outcome, or the record of a lock whose keys must all be declared in a second call. */
export type ById<Outcome> = Outcome | LockRecord;

const decodeReleaseById = (reply: unknown): ById<ReleaseCode> =>
  typeof reply === 'string'
    ? parseRecord(reply)
    : (RELEASE_CODES[reply as number] ?? unexpectedReply('lock-release', reply));

// Redis clients send a command again when its reply was lost. The second run finds no lock and would report
// `not_found`. So a release by lockId leaves its nonce behind for a while. A second run finds it and replies 1.
const RELEASED_MARK_MS = 10_000;
const RELEASED_BEFORE = `redis.call('GET', mark) == nonce and 1 or -1`;
const MARKED_RELEASE = `${OWNERSHIP}${QUEUED}${LIVENESS}${ownedAndLive(RELEASED_BEFORE)}
redis.call('DEL', record, index)
redis.call('PSETEX', mark, ${RELEASED_MARK_MS}, nonce)
return 1`;

/** Releases by lockId, where {@link readIndexScript} has found the record before. */
export const releaseFoundScript = defineScript({
  name: 'lock-release-found',
  keys: ['record', 'index', 'mark'],
  args: ['lockId', 'nonce'],
  lua: MARKED_RELEASE,
  decode: decodeReleaseById,
});

export const releaseByIdScript = defineScript({
  name: 'lock-release-by-id',
  keys: ['index', 'mark'],
  args: ['lockId', 'nonce'],
  lua: `
local record = redis.call('GET', index)
if not record then return ${RELEASED_BEFORE} end${MARKED_RELEASE}`,
  decode: decodeReleaseById,
});

const EXTEND = `${OWNERSHIP}${QUEUED}${LIVENESS}${ownedAndLive('-1')}${EXTENDING}
local new = extended(held)
-- A full server refuses a script whose first write may need memory. PEXPIRE needs none.
redis.call('PEXPIRE', record, ttlMs)
redis.call('SET', record, new, 'KEEPTTL')
redis.call('PSETEX', index, ttlMs, record)
return {1, expiresAtMs}`;

const decodeExtendById = (reply: unknown): ById<ExtendReply> =>
  typeof reply === 'string' ? parseRecord(reply) : decodeExtend(reply);

/** Extends by lockId, where {@link readIndexScript} has found the record before. */
export const extendFoundScript = defineScript({
  name: 'lock-extend-found',
  keys: ['record', 'index'],
  args: ['lockId', 'ttlMs'],
  lua: EXTEND,
  decode: decodeExtendById,
});

export const extendByIdScript = defineScript({
  name: 'lock-extend-by-id',
  keys: ['index'],
  args: ['lockId', 'ttlMs'],
  lua: RECORD_FROM_INDEX + EXTEND,
  decode: decodeExtendById,
});

/** A record as it is stored, and the server's time. The record may have expired: `isLive()` decides that. */
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
    // The value is not JSON. It is reported below, like every other value that is not a lock.
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

/** Replies the name of the record as the index holds it. The name includes the `keyPrefix` of the client. */
export const readIndexScript = defineScript({
  name: 'lock-read-index',
  keys: ['index'],
  args: [],
  lua: `return redis.call('GET', index) or -1`,
  decode: (reply): string | null =>
    reply === -1 ? null : typeof reply === 'string' ? reply : unexpectedReply('lock-read-index', reply),
});

/** Deletes a record that expired long ago, if it still has the given lockId. It never deletes a fence counter. */
export const cleanupScript = defineScript({
  name: 'lock-cleanup',
  keys: ['record', 'index'],
  args: ['lockId'],
  lua: `${OWNERSHIP}${NOW_MS}${EXPIRY}
local held = redis.call('GET', record)
if not held or not owns(held, lockId) then return 0 end
local expiry = expiryOf(held)
if expiry and expiry > nowMs - ${CLEANUP_AFTER_MS} then return 0 end
redis.call('DEL', record, index)
return 1`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('lock-cleanup', reply)),
});

export const lockScripts = [
  ...[1, 2].flatMap((count) => {
    const { acquire, release, extend } = scriptsFor(count);
    return [acquire, release, extend];
  }),
  handOnScript,
  publishScript,
  releaseFoundScript,
  releaseByIdScript,
  extendFoundScript,
  extendByIdScript,
  readScript,
  readByIdScript,
  readIndexScript,
  cleanupScript,
];
