import { isLive, TIME_TOLERANCE_MS } from '../../core/clock.js';
import type { LockRecord } from '../lock.record.js';
import { EXPIRY, OWNERSHIP } from './lock.fragments.js';
import { foreignValue } from '../../redis/redis.errors.js';
import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/** How long a record must have been expired before `cleanupInIsLocked` may delete it. It exceeds every tolerance. */
export const CLEANUP_AFTER_MS = 2_000;

/** A record as it is stored, and the server's time. The record may have expired. */
export interface ReadReply {
  readonly record: LockRecord;
  readonly nowMs: number;
}

export const liveRecordOf = (read: ReadReply | null): LockRecord | null =>
  read && isLive(read.record.expiresAtMs, read.nowMs, TIME_TOLERANCE_MS) ? read.record : null;

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
 * ARGV: isIndex ('1': the key is the index of a lock on one server, which has the name of the record. Only there a script can
 *   reach a key that is not in KEYS: law 1 of docs/scripts.md)
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
