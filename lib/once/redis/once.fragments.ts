import { inLines } from '../../script/fragments.js';

// A record is one string, so that one command writes all of it: a line of fields, then the key, then the result.
//   state     running, done or failed                 nonce     that of the last claim, or of `settle()`
//   fence     that of the last attempt                attempt   how many there were
//   started   when the last one began, in ms          at        while it runs the end of its lease, else when it ended
//   keep      how long the record stays after `at`    crash     `afterCrash` of the first call: run or refuse
//   print     the hash of the payload, or -           form      what the result is: value, http, error or none
//   keyBytes  the length of the key                   waiters   'id:process:untilMs,' of each call that waits, or -
const FIELDS = {
  state: '%a+',
  nonce: '[%w_-]+',
  fence: '%d+',
  attempt: '%d+',
  started: '%d+',
  at: '%d+',
  keep: '%d+',
  crash: '%a+',
  print: '[%w_-]+',
  form: '%a+',
  keyBytes: '%d+',
  waiters: '[%w_:,-]+',
};
const NAMES = Object.keys(FIELDS);
const PATTERN = Object.values(FIELDS)
  .map((field) => `(${field})`)
  .join(' ');

/** The version of the form of a record, with which it begins. */
const VERSION = 'once1';

/** `once` is the record, or nil. */
export const RECORD = /* lua */ `
-- Reads: record.
-- Sets: stored, once.
local stored = redis.call('GET', record)
local once
if stored then
  local line, rest = string.match(stored, '^${VERSION} ([^\\n]*)\\n(.*)$')
  if not line then
    local isNewer = string.find(stored, '^once%d+ ') and not string.find(stored, '^${VERSION} ')
    return redis.error_reply(isNewer and 'SYNCGUARD_NEWER' or 'SYNCGUARD_FOREIGN the key is not a call')
  end
  once = {}
  ${inLines(NAMES.map((name) => `once.${name}`))} = string.match(line,
    '^${PATTERN}$')
  if not once.state then return redis.error_reply('SYNCGUARD_FOREIGN the record is not of a call') end
  once.key, once.result = string.sub(rest, 1, once.keyBytes), string.sub(rest, once.keyBytes + 1)
end`;

/** `isLive` says whether the call runs, and its lease has not lapsed. */
export const LIVE = /* lua */ `
-- Reads: nowMs, once.
-- Sets: isLive.
local isLive = once and once.state == 'running' and tonumber(once.at) > nowMs`;

/**
 * `save()` stores the record. One that stands there already first gets its time, which a full server allows. The text is one
 * expression, as a loop would make a text for each field.
 */
export const SAVE = /* lua */ `
-- Reads: record, nowMs, stored, once.
-- Sets: save.
local function save()
  local ttlMs = once.at + once.keep - nowMs
  local text = '${VERSION}'
    ${NAMES.map((name) => `.. ' ' .. once.${name}`).join('\n    ')}
    .. '\\n' .. once.key .. once.result
  if not stored then return redis.call('SET', record, text, 'PX', ttlMs) end
  redis.call('PEXPIRE', record, ttlMs)
  redis.call('SET', record, text, 'KEEPTTL')
end`;

/** `waiting()` returns the calls that wait, in the order in which they came. */
export const WAITERS = /* lua */ `
-- Reads: nowMs, once.
-- Sets: waiting.
local function waiting()
  local list = {}
  for entry, id, process, untilMs in string.gmatch(once.waiters, '(([%w_-]+):([%w_-]+):(%d+),)') do
    if tonumber(untilMs) > nowMs then list[#list + 1] = {entry = entry, id = id, process = process} end
  end
  return list
end`;

/** `tell(all)` wakes the first of the calls that wait, or all. */
export const TELL = /* lua */ `
-- Reads: record, channel, waiting.
-- Sets: tell.
local function tell(all)
  local told = {}
  for _, waiter in ipairs(waiting()) do
    if not told[waiter.process] then
      redis.pcall('PUBLISH', channel .. waiter.process, string.match(record, '{(.-)}'))
    end
    told[waiter.process] = true
    if not all then return end
  end
end`;
