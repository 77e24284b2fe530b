import { LONGEST_TOMBSTONE_MS } from '../secret.backend.js';
import { NOW_MS } from '../../script/fragments.js';

/** The length of a viewTag and a comma. */
const CUT_LENGTH = 23;

// A secret is two HASHes. `content` has `bytes`, `form` ('text' or 'bytes') and `meta` (JSON, or empty). Redis deletes it
// at the deadline. `record` stays longer, as the tombstone:
//   proof    the secret part of the receipt         left     views that remain, -1 without a limit
//   expires  the deadline in ms, 0 without one      leases   'viewTag:endMs:calls;' of each pending view
//   used     views counted or pending               viewed   when it was last shown
//   max      maxFailures, 0 without                 failures  the calls of released leases, and of lapsed ones noted
//   ended    'how:atMs' of its burn                 label    for events
//   v        the version of another form of the record: one that a newer version of this package wrote, and stays as it is
//   tombstone  tombstoneMs                          cut      'viewTag,' of each view that was pending when it was burned
//   view:<viewTag>  views remaining after it        failed:<viewTag>  'released' or 'lapsed'
//   released, confirmed, last  the last viewTag that was released, confirmed, or counted without a limit of views
//   burn     the burnId of the call that burned it. These four let a second send of a call be recognised.
// `calls` are the calls that were shown a pending view, each 'callId,'. They are stored only where failures are counted,
// because each is a try, and a failure once its lease was released or has lapsed. A secret is burned when no view is left
// and none is pending, or when `failures` reaches `max`. A lapsing lease may burn it without a command. STATE derives that
// from the record.

export const STATE = /* lua */ `
-- Reads: record.
-- Sets: time, nowMs, fields, known, label, left, expiresAtMs, used, viewedAtMs, max, failures, tries, pending,
--   lapsed, triesPending, lapsedAtMs, ended, endedAtMs, cut, full, state, tell.${NOW_MS}
local fields = redis.call('HMGET', record, 'proof', 'left', 'expires', 'leases', 'used', 'viewed', 'max', 'failures',
  'ended', 'label', 'cut', 'tombstone', 'v')
if fields[13] then return redis.error_reply('SYNCGUARD_NEWER') end
local known, label = fields[1], fields[10] or ''
local left, expiresAtMs = tonumber(fields[2] or 0), tonumber(fields[3] or 0)
if known and not (left and expiresAtMs and fields[2] and fields[3]) then
  return redis.error_reply('SYNCGUARD_FOREIGN the record is not a secret')
end
local used, viewedAtMs = tonumber(fields[5] or 0), tonumber(fields[6] or 0)
local max, failures = tonumber(fields[7] or 0), tonumber(fields[8] or 0)
local cut = fields[11] or ''

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
    ended and tonumber(endedAtMs) or 0, label, #cut / ${CUT_LENGTH}}
end`;

// A full server refuses a script at its first write, if that needs memory, and at no later one. So the first write in
// the scripts with ENDINGS is always one that needs none (HDEL or UNLINK, and the HDEL of a field '' where there is
// nothing to delete). Secrets can be viewed and burned on a full server, but not created.
export const ENDINGS = /* lua */ `
-- Reads: fields, expiresAtMs, lapsed, record, nowMs, pending, content, used, viewedAtMs, failures.
-- Changes: ended, endedAtMs, left, cut.
-- Sets: tombstoneMs, tombstoneEndMs, noteLapsed, tryWrites, burn.
local tombstoneMs = tonumber(fields[12] or 0)
-- Returns when the tombstone is deleted: tombstoneMs after the end, or at the deadline if that is later, so that
-- anyone who follows the link learns how the secret ended. A deadline extends it to a year after the end at most.
-- With a tombstoneMs of 0 there is no tombstone, and the record is deleted at the end.
local function tombstoneEndMs(endMs)
  if tombstoneMs == 0 then return endMs end
  return math.max(endMs + tombstoneMs, math.min(expiresAtMs, endMs + ${LONGEST_TOMBSTONE_MS}))
end

-- Records the failures of lapsed leases, which are removed from the record.
local function noteLapsed()
  for _, lease in ipairs(lapsed) do
    if lease.calls ~= '' then redis.call('HSET', record, 'failed:' .. lease.holder, 'lapsed') end
  end
end

-- Writes that change nothing. An ACL that forbids them refuses the script here, and not where half of it is written. A
-- full server allows the HDEL, and then every write after it.
local function tryWrites()
  redis.call('HDEL', record, '')
  redis.call('HSET', record, 'left', fields[2])
end

local function burn(how)
  ended, endedAtMs, left = how, nowMs, 0
  for _, lease in ipairs(pending) do cut = cut .. lease.holder .. ',' end
  if tombstoneMs == 0 then
    redis.call('UNLINK', content, record)
  else
    tryWrites()
    redis.call('PEXPIREAT', record, tombstoneEndMs(nowMs))
    redis.call('HSET', record, 'left', 0, 'leases', '', 'used', used, 'viewed', viewedAtMs, 'failures', failures,
      'ended', how .. ':' .. nowMs)
    if cut ~= '' then redis.call('HSET', record, 'cut', cut) end
    noteLapsed()
    redis.call('HDEL', content, 'bytes', 'form', 'meta')
  end
end`;

// What scripts need that take or settle pending views.
export const LEASING = /* lua */ `
-- Reads: expiresAtMs, full, pending, content, record, tombstoneEndMs, tryWrites, left, used, viewedAtMs, failures,
--   noteLapsed, lapsed, viewTag, max.
-- Sets: setEnd, save, failureOf, leaseOf.
-- Ends the keys at the deadline, or when the last pending view lapses if no further view is possible.
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

-- If it also ends the keys, their end comes before what is recorded.
local function save(ends)
  local leases = {}
  for i, lease in ipairs(pending) do leases[i] = lease.holder .. ':' .. lease.endMs .. ':' .. lease.calls .. ';' end
  if ends then
    tryWrites()
    setEnd()
  else
    redis.call('HDEL', record, '')
  end
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

export const KEYS = ['content', 'record'] as const;
