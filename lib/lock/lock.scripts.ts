import { TIME_TOLERANCE_MS } from '../clock.js';
import { defineScript, type Script, unexpectedReply } from '../script/define-script.js';
import { EXPIRY, GRANTING, HANDING_OVER, layoutOf, LIVENESS, OWNERSHIP, QUEUEING } from './lock.fragments.js';
import { numbered } from './lock.layout.js';
import { NOW_MS } from '../script/fragments.js';

/** How long a call for several keys keeps those that it got in its turn, unless it asks again, in ms. */
export const KEEP_MS = 1_000;

type KeyName = 'fenceCounter' | 'record' | 'queue' | 'index';

const namesOf = (name: string, count: number): string[] =>
  Array.from({ length: count }, (_, i) => numbered(name, i));

/** The names of KEYS of a script for so many keys of the user. Those of the second and later ones are numbered. */
const keysFor = (count: number): KeyName[] =>
  [
    ...namesOf('fenceCounter', count),
    ...namesOf('record', count),
    ...namesOf('queue', count),
    'index',
  ] as KeyName[];

/** Somebody to whom a lock was handed over: which of the call's keys, and who. */
export interface HandedOver {
  readonly key: number;
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
      /** Of the caller's place in the queue; empty if it does not wait. */
      readonly ticket: string;
      /** When it came into the queue; 0: it stood there before. */
      readonly place: number;
      /** It was handed a key in vain, since it did not get another one. */
      readonly passedOn: boolean;
      /** Its place had been taken from it, since its process did not hear. */
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
 * Takes free locks, all of them or none. Replies the first record, or -1 when a fence counter is at its end, or an
 * array: ms that are left of a lock that another holds, then what `AcquireReply` says of waiting, then pairs of a key's
 * number and the head of its queue to whom it was handed over.
 *
 * A caller that waits (with a `process`) stands in the queue of its first locked key, and in no other. What was handed
 * over to it is its own: so a re-sent call, and one whose turn it is, find their own records and take them. What it
 * cannot use, as another key is locked, goes on to the next in the queue; or, if it `keeps`, stays its own as long as
 * all keys before it are. Those are in one order for all callers, so none waits for another in a circle.
 */
const acquireFor = (count: number): Script<KeyName, AcquireArg, AcquireReply> =>
  defineScript({
    name: numbered('lock-acquire', count - 1),
    keys: keysFor(count),
    args: [...ACQUIRE_ARGS, ...(namesOf('keyJson', count) as never[])],
    lua: `${layoutOf(count, ACQUIRE_ARGS.length)}
${NOW_MS}
${GRANTING}

local fences, fence, queued = {}, 0, {}
for i = 1, COUNT do
  fences[i] = fenceOf(i)
  fence = math.max(fence, fences[i])
end

-- Where nobody holds, and nobody waits, the rest is of no concern.
if redis.call('EXISTS', unpack(KEYS, COUNT + 1, 3 * COUNT)) > 0 then
${OWNERSHIP}${EXPIRY}${HANDING_OVER}${QUEUEING}

local own, locked, heads = {}, {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', recordKeyOf(i))
  heads[i] = redis.call('ZRANGE', queueKeyOf(i), 0, 0, 'WITHSCORES')
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

-- A lock that is free, and has a queue, is that of the head of the queue.
local function isBefore(i)
  local head, at = heads[i][1], heads[i][2]
  if not head or string.sub(head, 1, 22) == lockId then return true end
  return ticket ~= '' and tonumber(ticket) <= tonumber(at)
end
local handed, blocked = {}, nil
local function passOn(i)
  local head, claim = handOver(i, fences[i])
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
      local fence = tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) or fences[i]
      local claim = recordOf(i, lockId, ${KEEP_MS}, fence, '') .. '\\t'
      if redis.call('EXISTS', queueKeyOf(i)) == 1 then claim = claim .. ' ' end
      if not own[i] then redis.call('SET', fenceKeyOf(i), string.format('%d', fence)) end
      redis.call('PSETEX', recordKeyOf(i), ${KEEP_MS}, claim)
    elseif own[i] then
      redis.call('DEL', recordKeyOf(i))
      passOn(i)
      passedOn = 1
    end
    if ticket ~= '' and i ~= blocked then leaveQueue(i) end
  end

  local left = redis.call('PTTL', recordKeyOf(blocked))
  if left < 0 then left = expiryOf(locked[blocked]) + ${TIME_TOLERANCE_MS} - nowMs end
  if process == '' then return {left, '', 0, 0, 0, unpack(handed)} end
  local at, place, dropped = enqueue(blocked, locked[blocked])
  return {left, at, place, passedOn, dropped, unpack(handed)}
end

local ownFence = tonumber(string.match(own[1] or '', '"fence":"(%d+)"'))
for i = 1, COUNT do
  if ticket ~= '' then leaveQueue(i) end
  queued[i] = redis.call('EXISTS', queueKeyOf(i)) == 1
  -- A full server refuses the first write of a script that may need memory. PEXPIRE needs none, and after it all may run.
  if own[i] then redis.call('PEXPIRE', recordKeyOf(i), ttlMs) end
  if tonumber(string.match(own[i] or '', '"fence":"(%d+)"')) ~= ownFence then ownFence = nil end
end
fence = ownFence or fence
end

if fence > FENCE_MAX then return -1 end
local first
for i = 1, COUNT do
  local json = recordOf(i, lockId, ttlMs, fence, i == 1 and keysJson or '')
  first = first or json
  redis.call('SET', fenceKeyOf(i), string.format('%d', fence))
  redis.call('PSETEX', recordKeyOf(i), ttlMs, queued[i] and json .. ' ' or json)
end
redis.call('PSETEX', index, ttlMs, recordKeyOf(1))
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
 * Ends a lock of the caller's: 1, or 0 another's, -1 none, -2 expired; of several the first that is not 1. Where somebody
 * waits it goes to the head of the queue: then the reply is an array of the code, and pairs of a key's number and that
 * head. `isLive`: the holder's own clock says so, and the server's need not be asked. `waiter`: the caller waits no more,
 * and leaves the queues too.
 */
const releaseFor = (count: number): Script<KeyName, ReleaseArg, ReleaseReply> =>
  defineScript({
    name: numbered('lock-release', count - 1),
    keys: keysFor(count),
    args: [...RELEASE_ARGS, ...(namesOf('keyJson', count) as never[])],
    lua: `${layoutOf(count, RELEASE_ARGS.length)}
${OWNERSHIP}
local code, own, queued = 1, {index}, {}
for i = 1, COUNT do
  local held = redis.call('GET', recordKeyOf(i))
  if not held then
    code = code == 1 and -1 or code
  elseif not owns(held, lockId) then
    code = code == 1 and 0 or code
  else
    own[#own + 1] = recordKeyOf(i)
    if isQueuedFor(held) then queued[#queued + 1] = i end
  end
  if waiter ~= '' then redis.call('ZCARD', queueKeyOf(i)) end
end

if isLive == '1' and #queued == 0 and waiter == '' then
  if #own > 1 then redis.call('DEL', unpack(own)) end
  return code
end
${LIVENESS}${GRANTING}${HANDING_OVER}
for j = 2, #own do
  if code == 1 and isLive ~= '1' and isDead(redis.call('GET', own[j])) then code = -2 end
end
local fences = {}
for _, i in ipairs(queued) do
  redis.call('ZCARD', queueKeyOf(i))
  fences[i] = fenceOf(i)
end

if #own > 1 then redis.call('DEL', unpack(own)) end
if waiter ~= '' then
  for i = 1, COUNT do redis.call('ZREM', queueKeyOf(i), waiter, lockId .. '-') end
end
local reply = {code}
for _, i in ipairs(queued) do
  local head = handOver(i, fences[i])
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

/** \`extended(json)\`: a record with its new expiry. */
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
 * Replaces the life of the caller's lock: [1, new expiry], or the codes of release; of several all or none. Never brings
 * one back. The head of a queue is told when the life becomes shorter, so that it looks when that is over.
 */
const extendFor = (count: number): Script<KeyName, ExtendArg, ExtendReply> =>
  defineScript({
    name: numbered('lock-extend', count - 1),
    keys: keysFor(count),
    args: EXTEND_ARGS,
    lua: `${layoutOf(count, EXTEND_ARGS.length)}
${OWNERSHIP}${LIVENESS}${EXTENDING}
local new, told = {}, {}
for i = 1, COUNT do
  local held = redis.call('GET', recordKeyOf(i))
  if not held then return -1 end
  if not owns(held, lockId) then return 0 end
  if isDead(held) then
    redis.call('DEL', recordKeyOf(i), index)
    return -2
  end
  if isQueuedFor(held) and expiresAtMs < expiryOf(held) then
    told[#told + 1] = redis.call('ZRANGE', queueKeyOf(i), 0, 0)[1]
  end
  new[i] = extended(held)
end
for i = 1, COUNT do
  -- A full server refuses the first write of a script that may need memory. PEXPIRE needs none, and after it all may run.
  redis.call('PEXPIRE', recordKeyOf(i), ttlMs)
  redis.call('SET', recordKeyOf(i), new[i], 'KEEPTTL')
end
redis.call('PSETEX', index, ttlMs, recordKeyOf(1))
for _, waiter in ipairs(told) do
  redis.pcall('PUBLISH', channel .. string.sub(waiter, 23), string.sub(waiter, 1, 22))
end
return {1, expiresAtMs}`,
    decode: decodeExtend,
  });

/** What is left of a claim in ms; the waiter to whom the lock was handed over now; 0: there is nothing to do. */
export type HandOnReply = number | string;

/**
 * Looks after a lock that was handed over to a waiter, when it should have taken it. If it has not, its process is gone
 * or stands still: all its places are given up (it has its tickets, should it come back), and the next one has its turn.
 */
export const handOnScript = defineScript({
  name: 'lock-hand-on',
  keys: ['fenceCounter', 'record', 'queue'],
  args: ['process', 'channel', 'countsAll', 'keyJson'],
  lua: `${layoutOf(1, 3)}
${OWNERSHIP}
local held = redis.call('GET', record)
if held then return isClaim(held) and math.max(redis.call('PTTL', record), 1) or 0 end
local waiters = redis.call('ZRANGE', queue, 0, -1)
if #waiters == 0 then return 0 end
${NOW_MS}${GRANTING}${HANDING_OVER}
local fence = fenceOf(1)
for _, waiter in ipairs(waiters) do
  if process ~= '-' and string.sub(waiter, 23) == process then redis.call('ZREM', queue, waiter) end
end
return handOver(1, fence) or 0`,
  decode: (reply): HandOnReply =>
    typeof reply === 'number' || typeof reply === 'string' ? reply : unexpectedReply('lock-hand-on', reply),
});

/** Whether the ACL lets scripts tell waiters of their turn. */
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

/** The scripts for so many keys: each number of keys is a command of its own (law 6 of docs/scripts.md). */
export const scriptsFor = (count: number): ScriptsOfLock =>
  (byCount[count] ??= {
    acquire: acquireFor(count),
    release: releaseFor(count),
    extend: extendFor(count),
  });
