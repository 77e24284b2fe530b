import { TIME_TOLERANCE_MS } from '../../core/clock.js';
import { defineScript, type Script, unexpectedReply } from '../../script/define-script.js';
import { EXPIRY, GRANTING, HANDING_OVER, LIVENESS, OWNERSHIP, QUEUED, QUEUEING } from './lock.fragments.js';
import { numbered } from './lock.layout.js';
import { NOW_MS } from '../../script/fragments.js';

/** How long a call for several keys keeps the keys that it has claimed, in ms. Each further attempt renews this time. */
export const KEEP_MS = 1_000;

type KeyName = 'fenceCounter' | 'record' | 'queue' | 'index';

const namesOf = (name: string, count: number): string[] =>
  Array.from({ length: count }, (_, i) => numbered(name, i));

/** Returns the names of KEYS for `count` keys of the user. The names for the second and later keys have a number. */
const keysFor = (count: number): KeyName[] =>
  [
    ...namesOf('fenceCounter', count),
    ...namesOf('record', count),
    ...namesOf('queue', count),
    'index',
  ] as KeyName[];

/** A script has made a waiter the owner of a lock, until the waiter takes it or the claim lapses. */
export interface HandedOver {
  /** The index of the key in the keys of the call. */
  readonly key: number;
  /** The lockId of the waiter and its process. */
  readonly waiter: string;
}

function handedOver(list: readonly unknown[], script: string): HandedOver[] {
  const handed: HandedOver[] = [];
  for (let i = 0; i < list.length; i += 2) {
    const [key, waiter] = [list[i], list[i + 1]];
    if (typeof key !== 'number' || typeof waiter !== 'string') return unexpectedReply(script, list);
    handed.push({ key: key - 1, waiter });
  }
  return handed;
}

/** The outcome of an acquire. */
export type AcquireReply =
  | { readonly status: 'granted'; readonly fence: string; readonly expiresAtMs: number }
  | {
      readonly status: 'locked';
      readonly remainingMs: number;
      /** Orders the queue: the caller passes it again to keep its place. Empty if the caller does not wait. */
      readonly ticket: string;
      /** The caller's place in the queue, counted from 1, when it has just entered. 0 if it stood there before. */
      readonly place: number;
      /** The caller had claimed a key, and the key went to the next waiter, because another key was still locked. */
      readonly passedOn: boolean;
      /** The caller was removed from the queue since its last attempt, because its process did not react to its turn. */
      readonly dropped: boolean;
      readonly handed: readonly HandedOver[];
    }
  | { readonly status: 'fence-overflow' };

const OWN_RECORD =
  /^\{"lockId":"[\w-]{22}","expiresAtMs":(\d+),"acquiredAtMs":\d+,"key":".*","fence":"(\d{15})"(?:,"keys":\[.*\])?\}$/s;

const ACQUIRE_ARGS = [
  'lockId',
  'ttlMs',
  'channel',
  'countsAll',
  'process',
  'ticket',
  'keeps',
  'keysJson',
] as const;
type AcquireArg = (typeof ACQUIRE_ARGS)[number];

/**
 * Takes free locks: all of them, or none. The reply has one of three shapes:
 * - the record of the first key, as JSON: all locks are granted;
 * - -1: a fence counter has reached its end;
 * - an array: another owner has one of the keys. The array holds the ms that are left of that lock, then `ticket`,
 *   `place`, `passedOn` and `dropped` of `AcquireReply`, then pairs of a key's number and the waiter that got this key.
 *
 * A caller that waits passes its `process`. It stands in the queue of its first locked key and in no other queue. A key
 * that was handed over to it has a record with its lockId already (a claim). So a call that is sent again, and a caller
 * whose turn has come, both find their own records and take them. While another of its keys is locked, a claimed key
 * goes on to the next waiter. A caller with `keeps` holds on to all keys before the first locked one instead. All
 * callers sort their keys in the same way, so callers never wait for each other in a circle.
 */
const acquireFor = (count: number): Script<KeyName, AcquireArg, AcquireReply> =>
  defineScript({
    name: numbered('lock-acquire', count - 1),
    keys: keysFor(count),
    args: [...ACQUIRE_ARGS, ...(namesOf('keyJson', count) as never[])],
    lua: `
local COUNT, ARGS = ${count}, ${ACQUIRE_ARGS.length}
${NOW_MS}
${GRANTING}

local fence, queued = 0, {}
for i = 1, COUNT do fence = math.max(fence, fenceOf(i)) end

-- Without any record or queue all keys are free, and the next part is skipped.
if redis.call('EXISTS', unpack(KEYS, COUNT + 1, 3 * COUNT)) > 0 then
${OWNERSHIP}${EXPIRY}${HANDING_OVER}${QUEUEING}

local own, locked, heads = {}, {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  heads[i] = redis.call('ZRANGE', KEYS[2 * COUNT + i], 0, 0, 'WITHSCORES')
  if held then
    local expiry = expiryOf(held)
    if not expiry then return redis.error_reply('SYNCGUARD_FOREIGN the record is not a lock') end
    if owns(held, lockId) then
      own[i] = held
    elseif expiry > nowMs - ${TIME_TOLERANCE_MS} then
      locked[i] = held
    end
  end
end

-- A free lock with a queue belongs to the head of the queue. True if the caller may take it before that head.
local function isBefore(i)
  local head, at = heads[i][1], heads[i][2]
  if not head or string.sub(head, 1, 22) == lockId then return true end
  return ticket ~= '' and tonumber(ticket) <= tonumber(at)
end
local handed, blocked = {}, nil
local function passOn(i)
  local head, claim = handOver(i)
  if not head then return end
  handed[#handed + 1] = i
  handed[#handed + 1] = head
  locked[i] = claim
end
for i = 1, COUNT do
  if not own[i] and not locked[i] and not isBefore(i) then passOn(i) end
  if locked[i] and not blocked then blocked = i end
end

if blocked then
  local passedOn = 0
  for i = 1, COUNT do
    local kept = keeps == '1' and i < blocked
    if kept then
      local ownFence = tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) or fenceOf(i)
      local claim = recordOf(i, lockId, ${KEEP_MS}, ownFence, '') .. '\\t'
      if redis.call('EXISTS', KEYS[2 * COUNT + i]) == 1 then claim = claim .. ' ' end
      if not own[i] then redis.call('SET', KEYS[i], string.format('%d', ownFence)) end
      redis.call('PSETEX', KEYS[COUNT + i], ${KEEP_MS}, claim)
    elseif own[i] then
      redis.call('DEL', KEYS[COUNT + i])
      passOn(i)
      passedOn = 1
    end
    if ticket ~= '' and i ~= blocked then leaveQueue(i) end
  end

  local left = redis.call('PTTL', KEYS[COUNT + blocked])
  if left < 0 then left = expiryOf(locked[blocked]) + ${TIME_TOLERANCE_MS} - nowMs end
  if process == '' then return {left, '', 0, 0, 0, unpack(handed)} end
  local at, place, dropped = enqueue(blocked, locked[blocked])
  return {left, at, place, passedOn, dropped, unpack(handed)}
end

local grantedFence = tonumber(string.match(own[1] or '', '"fence":"(%d+)"'))
for i = 1, COUNT do
  if ticket ~= '' then leaveQueue(i) end
  queued[i] = redis.call('EXISTS', KEYS[2 * COUNT + i]) == 1
  -- A full server refuses a script whose first write may need memory. PEXPIRE needs none.
  if own[i] then redis.call('PEXPIRE', KEYS[COUNT + i], ttlMs) end
  if tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) ~= grantedFence then grantedFence = nil end
end
fence = grantedFence or fence
end

if fence > FENCE_MAX then return -1 end
local first
for i = 1, COUNT do
  local json = recordOf(i, lockId, ttlMs, fence, i == 1 and keysJson or '')
  first = first or json
  redis.call('SET', KEYS[i], string.format('%d', fence))
  redis.call('PSETEX', KEYS[COUNT + i], ttlMs, queued[i] and json .. ' ' or json)
end
redis.call('PSETEX', index, ttlMs, KEYS[COUNT + 1])
return first`,
    decode(reply): AcquireReply {
      if (reply === -1) return { status: 'fence-overflow' };
      if (Array.isArray(reply) && typeof reply[0] === 'number' && typeof reply[1] === 'string') {
        const [remainingMs, ticket, place, passedOn, dropped, ...handed] = reply as [
          number,
          string,
          number,
          number,
          number,
        ];
        return {
          ...{ status: 'locked', remainingMs, ticket, place },
          ...{ passedOn: passedOn === 1, dropped: dropped === 1 },
          handed: handedOver(handed, 'lock-acquire'),
        };
      }
      const [, expiresAtMs, fence] = (typeof reply === 'string' && OWN_RECORD.exec(reply)) || [];
      if (!expiresAtMs || !fence) return unexpectedReply('lock-acquire', reply);
      return { status: 'granted', fence, expiresAtMs: Number(expiresAtMs) };
    },
  });

export type ReleaseCode = 'released' | 'mismatch' | 'not_found' | 'expired';

export const RELEASE_CODES: Readonly<Record<number, ReleaseCode>> = {
  1: 'released',
  0: 'mismatch',
  [-1]: 'not_found',
  [-2]: 'expired',
};

export interface ReleaseReply {
  readonly code: ReleaseCode;
  readonly handed: readonly HandedOver[];
}

function decodeRelease(reply: unknown): ReleaseReply {
  const [code, ...handed] = Array.isArray(reply) ? (reply as unknown[]) : [reply];
  return {
    code: RELEASE_CODES[code as number] ?? unexpectedReply('lock-release', reply),
    handed: handedOver(handed, 'lock-release'),
  };
}

const RELEASE_ARGS = ['lockId', 'isLive', 'waiter', 'channel', 'countsAll'] as const;
type ReleaseArg = (typeof RELEASE_ARGS)[number];

/**
 * Ends a lock of the caller. Replies 1 (released), 0 (another owner has the lock), -1 (there is no lock) or -2 (the lock
 * has expired). For several keys it is the first code that is not 1. A lock with a queue goes to the head of the queue.
 * Then the reply is an array of the code and pairs of a key's number and that head.
 *
 * `isLive` is '1' if the clocks of the holder's process say that the lock is live. The script then skips the check by
 * the server's clock. A caller that gives up waiting passes `waiter`, and leaves the queues too.
 */
const releaseFor = (count: number): Script<KeyName, ReleaseArg, ReleaseReply> =>
  defineScript({
    name: numbered('lock-release', count - 1),
    keys: keysFor(count),
    args: [...RELEASE_ARGS, ...(namesOf('keyJson', count) as never[])],
    lua: `
local COUNT, ARGS = ${count}, ${RELEASE_ARGS.length}
${OWNERSHIP}${QUEUED}
local code, own, queued = 1, {index}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  if not held then
    code = code == 1 and -1 or code
  elseif not owns(held, lockId) then
    code = code == 1 and 0 or code
  else
    own[#own + 1] = KEYS[COUNT + i]
    if isQueuedFor(held) then queued[#queued + 1] = i end
  end
  if waiter ~= '' then redis.call('ZCARD', KEYS[2 * COUNT + i]) end
end

if isLive == '1' and #queued == 0 and waiter == '' then
  if #own > 1 then redis.call('DEL', unpack(own)) end
  return code
end
${LIVENESS}${GRANTING}${HANDING_OVER}
for j = 2, #own do
  if code == 1 and isLive ~= '1' and isDead(redis.call('GET', own[j])) then code = -2 end
end
for _, i in ipairs(queued) do
  redis.call('ZCARD', KEYS[2 * COUNT + i])
  fenceOf(i)
end

if #own > 1 then redis.call('DEL', unpack(own)) end
if waiter ~= '' then
  for i = 1, COUNT do redis.call('ZREM', KEYS[2 * COUNT + i], waiter, lockId .. '-') end
end
local reply = {code}
for _, i in ipairs(queued) do
  local head = handOver(i)
  if head then
    reply[#reply + 1] = i
    reply[#reply + 1] = head
  end
end
return #reply == 1 and code or reply`,
    decode: decodeRelease,
  });

export type ExtendReply =
  | { readonly code: 'extended'; readonly expiresAtMs: number }
  | { readonly code: Exclude<ReleaseCode, 'released'> };

export function decodeExtend(reply: unknown): ExtendReply {
  if (Array.isArray(reply) && reply[0] === 1 && typeof reply[1] === 'number')
    return { code: 'extended', expiresAtMs: reply[1] };
  const code = RELEASE_CODES[reply as number];
  if (!code || code === 'released') return unexpectedReply('lock-extend', reply);
  return { code };
}

/** The Lua function \`extended(json)\` returns a record with its new expiry. */
export const EXTENDING = `
local expiresAtMs = nowMs + ttlMs
local function extended(json)
  local new, found = string.gsub(json, '"expiresAtMs":%d+([,}])', string.format('"expiresAtMs":%d%%1', expiresAtMs), 1)
  if found == 1 then return new end
  local fields = decode(json)
  fields.expiresAtMs = expiresAtMs
  return cjson.encode(fields) .. (isQueuedFor(json) and ' ' or '')
end`;

const EXTEND_ARGS = ['lockId', 'ttlMs', 'channel', 'countsAll'] as const;
type ExtendArg = (typeof EXTEND_ARGS)[number];

/**
 * Replaces the rest of the life of the caller's lock. Replies [1, the new expiry], or a code of release. Of several keys
 * it extends all or none. It never brings an expired lock back. Where the life becomes shorter, the head of the queue
 * is woken, so that it tries again in time.
 */
const extendFor = (count: number): Script<KeyName, ExtendArg, ExtendReply> =>
  defineScript({
    name: numbered('lock-extend', count - 1),
    keys: keysFor(count),
    args: EXTEND_ARGS,
    lua: `
local COUNT = ${count}
${OWNERSHIP}${QUEUED}${LIVENESS}${EXTENDING}
local new, told = {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', KEYS[COUNT + i])
  if not held then return -1 end
  if not owns(held, lockId) then return 0 end
  if isDead(held) then
    redis.call('DEL', KEYS[COUNT + i], index)
    return -2
  end
  if isQueuedFor(held) and expiresAtMs < expiryOf(held) then
    told[#told + 1] = redis.call('ZRANGE', KEYS[2 * COUNT + i], 0, 0)[1]
  end
  new[i] = extended(held)
end
for i = 1, COUNT do
  -- A full server refuses a script whose first write may need memory. PEXPIRE needs none.
  redis.call('PEXPIRE', KEYS[COUNT + i], ttlMs)
  redis.call('SET', KEYS[COUNT + i], new[i], 'KEEPTTL')
end
redis.call('PSETEX', index, ttlMs, KEYS[COUNT + 1])
for _, head in ipairs(told) do
  redis.pcall('PUBLISH', channel .. string.sub(head, 23), string.sub(head, 1, 22))
end
return {1, expiresAtMs}`,
    decode: decodeExtend,
  });

/** The ms that are left of a claim, or the waiter that has just got the lock, or 0 if there is nothing to do. */
export type HandOnReply = number | string;

/**
 * Checks a lock that was handed over, once its waiter should have taken it. A waiter that has not taken it belongs to a
 * process that is gone or stands still. The script then removes all waiters of that process from the queue, and hands
 * the lock to the next waiter. A process that comes back enters the queue again with its old tickets.
 */
export const handOnScript = defineScript({
  name: 'lock-hand-on',
  keys: ['fenceCounter', 'record', 'queue'],
  args: ['process', 'channel', 'countsAll', 'keyJson'],
  lua: `
local COUNT, ARGS = 1, 3
local held = redis.call('GET', record)
if held then return string.find(held, '\\t', -2, true) and math.max(redis.call('PTTL', record), 1) or 0 end
local waiters = redis.call('ZRANGE', queue, 0, -1)
if #waiters == 0 then return 0 end
${NOW_MS}${GRANTING}${HANDING_OVER}
fenceOf(1) -- fails if the fence is not a counter, before anything is written
for _, waiter in ipairs(waiters) do
  if process ~= '-' and string.sub(waiter, 23) == process then redis.call('ZREM', queue, waiter) end
end
return handOver(1) or 0`,
  decode: (reply): HandOnReply =>
    typeof reply === 'number' || typeof reply === 'string' ? reply : unexpectedReply('lock-hand-on', reply),
});

/** Replies whether the ACL lets scripts publish, which is how waiters learn of their turn. */
export const publishScript = defineScript({
  name: 'lock-publish',
  keys: [],
  args: ['channel'],
  lua: `return type(redis.pcall('PUBLISH', channel, '')) == 'number' and 1 or 0`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('lock-publish', reply)),
});

export interface ScriptsOfLock {
  readonly acquire: Script<KeyName, AcquireArg, AcquireReply>;
  readonly release: Script<KeyName, ReleaseArg, ReleaseReply>;
  readonly extend: Script<KeyName, ExtendArg, ExtendReply>;
}

const byCount: ScriptsOfLock[] = [];

/** Returns the scripts for `count` keys. Each number of keys has its own command (law 6 of docs/scripts.md). */
export const scriptsFor = (count: number): ScriptsOfLock =>
  (byCount[count] ??= {
    acquire: acquireFor(count),
    release: releaseFor(count),
    extend: extendFor(count),
  });
