import { foreignValue } from '../redis/redis.errors.js';
import { defineScript, unexpectedReply } from '../script/define-script.js';
import { NOW_MS } from '../script/fragments.js';
import { LIVENESS, OWNERSHIP } from './lock.fragments.js';
import type { LockRecord } from './lock.record.js';
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

/** How long a record must be dead before `cleanupInIsLocked` may delete it: beyond any tolerance. */
export const CLEANUP_AFTER_MS = 2_000;

// By a bare lockId the record's name is read from the index. Only the spec layout does that: it lives on one
// server, where a key need not be declared to be found (law 1 of docs/scripts.md).
const RECORD_FROM_INDEX = `
local record = redis.call('GET', index)
if not record then return -1 end`;

// The owner first, then liveness, then the write. A lock that somebody waits for, or that is one of several of its
// grant, needs keys that only its record names: it is replied as it is, and the caller goes on with all of them.
const ownedAndLive = (none: string): string => `
local held = redis.call('GET', record)
if not held then return ${none} end
if not owns(held, lockId) then return 0 end
if isDead(held) then
  redis.call('DEL', record, index)
  return -2
end
if isQueuedFor(held) or string.find(held, ',"keys":[', 1, true) then return held end`;

/** An outcome; or the record, where all of its keys must be declared. */
export type ById<Outcome> = Outcome | LockRecord;

const decodeReleaseById = (reply: unknown): ById<ReleaseCode> =>
  typeof reply === 'string'
    ? parseRecord(reply)
    : (RELEASE_CODES[reply as number] ?? unexpectedReply('lock-release', reply));

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

const EXTEND = `${OWNERSHIP}${LIVENESS}${ownedAndLive('-1')}${EXTENDING}
local new = extended(held)
-- A full server refuses the first write of a script that may need memory. PEXPIRE needs none, and after it all may run.
redis.call('PEXPIRE', record, ttlMs)
redis.call('SET', record, new, 'KEEPTTL')
redis.call('PSETEX', index, ttlMs, record)
return {1, expiresAtMs}`;

const decodeExtendById = (reply: unknown): ById<ExtendReply> =>
  typeof reply === 'string' ? parseRecord(reply) : decodeExtend(reply);

/** By a bare lockId, whose record was found by {@link readIndexScript}. */
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
