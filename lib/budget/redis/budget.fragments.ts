import { NOW_MS } from '../../script/fragments.js';
import { MAX_AMOUNT } from '../budget.results.js';
import { readRecord, type RecordPart } from './budget.record.js';

// The keys of a root. Lists inside a value are joined by ';'.
//
//   counters  HASH  c|<scope>|<period>|<startMs>  version committed reserved credits archived crossed. The last is the
//                               highest threshold that was crossed: percent, or percent=limit+credits of its last
//                               check, where a limit of setLimit (or '') or credits counted
//                   l|<scope>   limits by setLimit: period=limit period=limit
//                   ~           when the keys end, in ms, or 'never', or 'never l' once setLimit was used
//   records   HASH  o|<id>      an operation (budget.record.ts)
//                   O|<generation>|<id>  an older hold, after its id was reserved again
//                   q|<field>   a record that could not be read, set aside as it was
//   pending   ZSET  <id> of each pending hold, by expiry; '' (which is no id) at +inf, where the keys end
//   garbage   ZSET  fields to purge, by time: o|, O| as in records, c| as in counters;
//                   n|<id>, N|<generation>|<id>, at 0: an expiry that reap has not reported; q|<field>, at 0: a record
//                   set aside that it has not reported; '' at +inf, as in pending
//   idKey     String of one id, until idTtlMs: a finalized operation (KEPT), a refund, or a credit
//
// Each record, counter and id begins with its version. One of a newer version stays as it is: a process of that version will
// deal with it.
//
// Scopes are percent-encoded (all but ':'), so that they never contain a separator.
//
// The scripts run often. A Lua closure costs as much as a small command, and a pattern reads every byte. So rare code
// is in blocks and not in functions. A number that becomes an argument of a command is written with 17 digits, which takes
// longer than to pass it as text.

/**
 * Defines the server's time, and lists. Amounts are stored as decimal text. Numbers of Lua are exact up to MAX_AMOUNT, and
 * they are written by `%d`, because `..` rounds them to 14 digits.
 */
const BASICS = /* lua */ `
local call = redis.call
${NOW_MS}
local format, match, gmatch = string.format, string.match, string.gmatch
local find, sub = string.find, string.sub
local now = format('%d', nowMs)
local EMPTY = '1 0 0 0 0 0'

local function split(list)
  local parts, from, at = {}, 1, find(list, ';', 1, true)
  while at do
    parts[#parts + 1] = sub(list, from, at - 1)
    from = at + 1
    at = find(list, ';', from, true)
  end
  parts[#parts + 1] = sub(list, from)
  return parts
end`;

/** Lua that is true where a record or counter is of a newer version. */
export const isNewer = (text: string): string =>
  `tonumber(string.match(${text} or '', '^(%d%d?%d?) ') or 1) > 1`;

/** Fails because a record or counter cannot be read. */
export const unreadable = (text: string): string =>
  `error(${isNewer(text)} and 'SYNCGUARD_NEWER'
    or 'SYNCGUARD_UNREADABLE', 0)`;

export const COUNTER = "'^1 (%d+) (%d+) (%d+) (%d+) (%S+)$'";

/** Sets locals to parts of `record`. Fails if it cannot be read. */
export const openRecord = (...parts: RecordPart[]): string => /* lua */ `
${readRecord(...parts)}
if not ${parts[0]} then ${unreadable('record')} end`;

/**
 * Sets aside the records in `aside`, byte for byte, so that they stop nobody. What they had reserved stays reserved until
 * somebody repairs the root, because nobody knows how much that is.
 */
export const SET_ASIDE = /* lua */ `
-- Reads: call, aside, records, garbage.
  for field, record in pairs(aside) do
    call('HSET', records, 'q|' .. field, record)
    call('ZADD', garbage, 0, 'q|' .. field)
    call('HDEL', records, field)
  end`;

/**
 * A ZREM that removes nothing. An ACL that forbids ZREM refuses the script here, and not after half of its writes. A full
 * server allows it, and then every write after it.
 */
export const TRY_ZREM = "call('ZREM', garbage, '-')";

/** How many expired holds a call settles at most. */
const BATCH = 100;

/**
 * The beginning of every script that adds amounts up. It settles expired holds before anything else is read, so that no
 * sum includes them. A batch of full size may leave others, so the script then replies 'more' and is called again.
 * Everything is read before the first write. A script of its own for this was measured to be slower (docs/adr/0011).
 *
 * A full server (`maxmemory` with `noeviction`) checks a script at its first write only, and refuses it there
 * if the command needs memory. So scripts that settle or free memory start with a ZREM, and scripts that need memory for themselves do it later.
 *
 * A hold stays in \`pending\` until all of the rest is written. What an ACL refuses on the way is settled by the next call.
 */
const start = (first: string): string => /* lua */ `
-- Reads: pending, garbage, records, counters, retentionMs.
-- Sets: call, time, nowMs, format, match, gmatch, find, sub, now, EMPTY, split, LATER_MS, due.${BASICS}
local LATER_MS = 60000
local due = call('ZRANGEBYSCORE', pending, '-inf', now, 'LIMIT', '0', '${BATCH}')
if #due > 0 then
  call('ZCARD', garbage)
  local dueFields = {}
  for i, dueId in ipairs(due) do dueFields[i] = 'o|' .. dueId end
  local dueRecords = call('HMGET', records, unpack(dueFields))
  local touched, expired, last, later, aside, gone = {}, {}, {}, {}, {}, {}
  for i, dueId in ipairs(due) do
    local record = dueRecords[i]
    ${readRecord('state', 'kind', 'generationOf', 'amountOf', 'createdAtMs', 'expiresAtMs', 'crossed', 'fixed', 'fieldsOf', 'endsOf')}
    local isHold, isLater = state == 'p', ${isNewer('record')}
    for field in gmatch(isHold and fieldsOf or '', '[^;]+') do
      if not touched[field] then
        local packed = call('HGET', counters, field) or EMPTY
        local counter = { match(packed, ${COUNTER}) }
        if counter[1] then touched[field] = counter end
        isLater = isLater or ${isNewer('packed')}
      end
    end
    if not isLater then gone[#gone + 1] = dueId end
    if isLater then
      later[#later + 1] = dueId
    elseif isHold then
      expired['o|' .. dueId] = table.concat({ '1 x', kind, generationOf, amountOf, '0 0 0 0 0', createdAtMs,
        expiresAtMs, expiresAtMs, crossed, fixed }, ' ')
      last['o|' .. dueId] = expiresAtMs + retentionMs
      local stops, j = split(endsOf), 0
      for field in gmatch(fieldsOf, '[^;]+') do
        j = j + 1
        -- A counter that cannot be read stays as it is.
        if touched[field] then touched[field][2] = math.max(touched[field][2] - amountOf, 0) end
        -- The counter of a past window is kept 1 ms longer than the last operation that uses it.
        if stops[j] ~= '0' then
          last[field] = math.max(last[field] or 0, math.max(stops[j], expiresAtMs) + retentionMs + 1)
        end
      end
    elseif record and not state then
      aside['o|' .. dueId] = record
    end
  end
  ${first}
  for _, dueId in ipairs(later) do call('ZADD', pending, nowMs + LATER_MS, dueId) end
  for field, ms in pairs(last) do call('ZADD', garbage, 'GT', ms, field) end
  for field in pairs(expired) do call('ZADD', garbage, 0, 'n' .. sub(field, 2)) end
  ${TRY_ZREM}
  ${SET_ASIDE}
  for field, counter in pairs(touched) do
    call('HSET', counters, field, format('1 %s %d %s %s %s', unpack(counter)))
  end
  for field, record in pairs(expired) do call('HSET', records, field, record) end
  if #gone > 0 then call('ZREM', pending, unpack(gone)) end
end
if #due == ${BATCH} then return { 'more' } end`;

/** For scripts that write something new. */
export const START = start('');

/** For the others. */
export const START_SETTLING = start(TRY_ZREM);

/** Replies 'stale' where a window does not contain the server's time. */
export const REFUSE_STALE = /* lua */ `
-- Reads: now, nowMs, openFromMs, openUntilMs.
if nowMs - openFromMs < 0 or (openUntilMs ~= '0' and nowMs - openUntilMs >= 0) then
  return { 'stale', now }
end`;

/**
 * Reads the counters of \`fields\` into \`packed\`, as they are stored into \`found\`, their names into \`names\`, and the end of
 * the keys into \`ending\`.
 */
export const READ_COUNTERS = /* lua */ `
-- Reads: split, fields, call, counters, EMPTY.
-- Sets: names, found, packed, ending.
local names = split(fields)
local found, packed = call('HMGET', counters, '~', unpack(names)), {}
local ending = found[1]
for i = 1, #names do packed[i] = found[i + 1] or EMPTY end`;

/**
 * Reads the limits too. In \`inForce\` one of setLimit replaces the configured one. A limit for a type counts only where no limit
 * is configured for the scope itself.
 */
export const READ_BALANCES = /* lua */ `
-- Reads: split, fields, call, counters, EMPTY, limits, inherited, match, find.
-- Sets: names, found, packed, ending, inForce.${READ_COUNTERS}
local inForce = limits
if ending == 'never l' then
  local limitOf, inherits = split(limits), split(inherited)
  for i, field in ipairs(names) do
    local name, ofType, period = match(field, '^c|(([^|:]+)[^|]*)|([^|]+)|')
    for _, text in ipairs(call('HMGET', counters, 'l|' .. (inherits[i] == '1' and ofType or name), 'l|' .. name)) do
      local _, at = find(' ' .. (text or ''), ' ' .. period .. '=', 1, true)
      if at then limitOf[i] = match(text, '%S+', at) end
    end
  end
  inForce = table.concat(limitOf, ';')
end`;

/** Lua that adds a limit and credits. */
export const effective = (limit: string, credits: string): string =>
  `math.min(${limit} + ${credits}, ${MAX_AMOUNT})`;

/** Takes the counter in `packed[i]` apart. Fails if it cannot be read. */
const openCounter = (names = 'committed, reserved, credits, rest'): string => /* lua */ `
  local ${names} = match(packed[i], '^1 (%d+) (%d+) (%d+)( %d+ %S+)$')
  if not committed then ${unreadable('packed[i]')} end`;

/** Sets `covered`: the part of an amount for which every entry has room. */
export const covered = (amount: string): string => /* lua */ `
-- Reads: split, inForce, match, packed.
-- Sets: covered.
local covered = ${amount}
for i, limit in ipairs(split(inForce)) do${openCounter('committed, reserved, credits')}
  local room = limit == 'u' and covered or ${effective('limit', 'credits')} - committed - reserved
  covered = math.max(math.min(covered, room), 0)
end`;

/**
 * Changes each counter: its committed, reserved and credits, and the rest, which is archived and crossed. Lua of `change` does
 * it, by these names. All of them are text.
 */
export const changeCounters = (change: string): string => /* lua */ `
-- Reads: names, match.
-- Changes: packed.
for i = 1, #names do${openCounter()}
  ${change}
  packed[i] = '1 ' .. committed .. ' ' .. reserved .. ' ' .. credits .. rest
end`;
