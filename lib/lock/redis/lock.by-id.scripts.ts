import type { LockRecord } from '../lock.record.js';
import { EXPIRY, EXTENDING, LIVENESS, OWNERSHIP, QUEUED } from './lock.fragments.js';
import { RELEASE_CODES, decodeExtend, type ExtendReply, type ReleaseCode } from './lock.replies.js';
import { foreignValue } from '../../redis/redis.errors.js';
import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/** How long a record must have been expired before `cleanupInIsLocked` may delete it. It exceeds every tolerance. */
export const CLEANUP_AFTER_MS = 2_000;

// A caller that knows nothing but the lockId needs the name of the record, which the index has. In the slotted layout
// lock-read-index reads it before. In the spec layout, which is used on one server, the caller names the index as the
// record: there a script can reach a key that is not in KEYS (law 1 of docs/scripts.md).
const RECORD_FROM_INDEX = /* lua */ `
if record == index then record = redis.call('GET', index) end`;

// Checks the owner first and the expiry second, before any write. A lock that has waiters, or whose grant has several
// keys, needs more keys than the caller knows. Only its record names them. So the script replies with the record, and
// the caller runs the script that declares all of these keys.
const ownedAndLive = (none: string): string => /* lua */ `
local held = record and redis.call('GET', record)
if not held then return ${none} end
if not owns(held, lockId) then return 0 end
if isDead(held) then
  redis.call('DEL', record, index)
  return -2
end
if isQueuedFor(held) or string.find(held, ',"keys":[', 1, true) then return held end`;

/** An outcome, or the keys of a lock that must all be declared in a second call. */
export type ById<Outcome> = Outcome | { readonly keys: readonly string[] };

function keysIn(json: string): { readonly keys: readonly string[] } {
  const { key, keys = [key] } = parseRecord(json);
  return { keys };
}

// Redis clients send a command again when its reply was lost. The second run finds no lock and would report
// `not_found`. So a release by lockId leaves its nonce behind for a while. A second run finds it and replies 1.
const RELEASED_MARK_MS = 10_000;

const RELEASED_BEFORE = /* lua */ `redis.call('GET', mark) == nonce and 1 or -1`;

/**
 * lock-release-by-id: Releases by lockId.
 * KEYS: record (or the index again), index, mark
 * ARGV: lockId, nonce
 * Reply: a code of lock-release. Where a lock has waiters or several keys, the reply is its record, and the
 *   caller runs the script that declares all keys.
 * Atomic: only the owner's lock is deleted, whatever the index says. The mark tells a second run that the first one
 *   was heard.
 */
export const releaseByIdScript = defineScript({
  name: 'lock-release-by-id',
  keys: ['record', 'index', 'mark'],
  args: ['lockId', 'nonce'],
  lua: /* lua */ `${RECORD_FROM_INDEX}${OWNERSHIP}${QUEUED}${LIVENESS}${ownedAndLive(RELEASED_BEFORE)}
redis.call('DEL', mark)
redis.call('SET', mark, nonce, 'PX', ${RELEASED_MARK_MS})
redis.call('DEL', record, index)
return 1`,
  decode: (reply): ById<ReleaseCode> =>
    typeof reply === 'string'
      ? keysIn(reply)
      : (RELEASE_CODES[reply as number] ?? unexpectedReply('lock-release-by-id', reply)),
});

/**
 * lock-extend-by-id: Extends by lockId.
 * KEYS: record (or the index again), index
 * ARGV: lockId, ttlMs
 * Reply: as lock-extend. Where a lock has waiters or several keys, the reply is its record, and the caller runs
 *   the script that declares all keys.
 * Atomic: a lock that has expired or has another owner is never extended, whatever the index says.
 */
export const extendByIdScript = defineScript({
  name: 'lock-extend-by-id',
  keys: ['record', 'index'],
  args: ['lockId', 'ttlMs'],
  lua: /* lua */ `${RECORD_FROM_INDEX}${OWNERSHIP}${QUEUED}${LIVENESS}${ownedAndLive('-1')}${EXTENDING}
local new = extended(held)
-- A full server refuses a script whose first write may need memory. PEXPIRE needs none.
redis.call('PEXPIRE', index, ttlMs)
redis.call('SET', record, new, 'PX', ttlMs)
redis.call('SET', index, record, 'PX', ttlMs)
return {1, expiresAtMs}`,
  decode: (reply): ById<ExtendReply> => (typeof reply === 'string' ? keysIn(reply) : decodeExtend(reply)),
});

/** A record as it is stored, and the server's time. The record may have expired: `isLive()` decides that. */
export interface ReadReply {
  readonly record: LockRecord;
  readonly nowMs: number;
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

/**
 * lock-read: Reads a record as it is stored.
 * KEYS: record
 * ARGV: isIndex ('1': the key is the index of a lock on one server, which has the name of the record)
 * Reply: [record, the server's time], or -1
 * Atomic: the record and the time by which its caller judges it belong together.
 */
export const readScript = defineScript({
  name: 'lock-read',
  keys: ['record'],
  args: ['isIndex'],
  lua: /* lua */ `${NOW_MS}
local held = redis.call('GET', record)
if held and isIndex == '1' then held = redis.call('GET', held) end
if not held then return -1 end
return {held, nowMs}`,
  decode(reply): ReadReply | null {
    if (reply === -1) return null;
    if (!Array.isArray(reply) || typeof reply[0] !== 'string' || typeof reply[1] !== 'number')
      return unexpectedReply('lock-read', reply);
    return { record: parseRecord(reply[0]), nowMs: reply[1] };
  },
});

/**
 * lock-read-index: Reads the name of the record that has a lockId.
 * KEYS: index
 * ARGV: none
 * Reply: the name, which includes the `keyPrefix` of the client, or -1
 * Atomic: it is one command.
 */
export const readIndexScript = defineScript({
  name: 'lock-read-index',
  keys: ['index'],
  args: [],
  lua: /* lua */ `return redis.call('GET', index) or -1`,
  decode: (reply): string | null =>
    reply === -1 ? null : typeof reply === 'string' ? reply : unexpectedReply('lock-read-index', reply),
});

/** The calls that wait for a lock: how many, and the first of them with their tickets. */
export interface QueueReply {
  readonly waiting: number;
  readonly first: readonly { readonly waiter: string; readonly ticket: number }[];
}

/**
 * lock-queue: Counts the calls that wait for a lock, and reads the first of them.
 * KEYS: queue
 * ARGV: most
 * Reply: [how many wait, waiter, ticket, waiter, ticket...]
 * Atomic: number and order are of one moment.
 */
export const queueScript = defineScript({
  name: 'lock-queue',
  keys: ['queue'],
  args: ['most'],
  lua: /* lua */ `
local reply = {redis.call('ZCOUNT', queue, 0, '+inf')}
if most == '0' then return reply end
local marks = redis.call('ZCOUNT', queue, '-inf', '(0')
local first = redis.call('ZRANGE', queue, marks, marks + most - 1, 'WITHSCORES')
for _, each in ipairs(first) do reply[#reply + 1] = each end
return reply`,
  decode(reply): QueueReply {
    const [waiting, ...rest] = Array.isArray(reply) ? (reply as unknown[]) : [];
    if (typeof waiting !== 'number') return unexpectedReply('lock-queue', reply);
    const first = Array.from({ length: rest.length / 2 }, (_, i) => ({
      waiter: String(rest[2 * i]),
      ticket: Number(rest[2 * i + 1]),
    }));
    return { waiting, first };
  },
});

/**
 * lock-cleanup: Deletes a record that expired long ago. It never deletes a fence counter.
 * KEYS: record, index
 * ARGV: lockId
 * Reply: 1 or 0
 * Atomic: a lock that was taken meanwhile has another lockId, and stays.
 */
export const cleanupScript = defineScript({
  name: 'lock-cleanup',
  keys: ['record', 'index'],
  args: ['lockId'],
  lua: /* lua */ `${OWNERSHIP}${NOW_MS}${EXPIRY}
local held = redis.call('GET', record)
if not held or not owns(held, lockId) then return 0 end
local expiry = expiryOf(held)
if expiry and expiry > nowMs - ${CLEANUP_AFTER_MS} then return 0 end
redis.call('DEL', record, index)
return 1`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('lock-cleanup', reply)),
});
