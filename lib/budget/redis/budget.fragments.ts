import { NOW_MS } from '../../script/fragments.js';

// The four keys of a root. Lists inside a value are joined by ';'.
//
//   counters  HASH  c|<scope>|<period>|<startMs>  committed reserved credits archived crossed. The last is the highest
//                               threshold that was crossed: percent, or percent=limit where setLimit set a limit
//                   l|<scope>   limits by setLimit: period=limit period=limit
//                   ~           when the keys end, in ms, or 'never', or 'never l' once setLimit was used
//   records   HASH  o|<id>      an operation: state kind generation amount actual committed refunded uncovered late
//                               createdAtMs expiresAtMs endedAtMs crossed
//                   d|<id>      its fixed part: nonce openUntilMs fields limits thresholds ends inherited
//                               scopes meta
//                   O|<generation>|<id>, D|<generation>|<id>  the same for an older hold, after its id was reserved again
//                   r|<refundId>, k|<creditId>  the refund, the credit
//   pending   ZSET  <id> of each pending hold, by expiry; '' (which is no id) at +inf, where the keys end
//   garbage   ZSET  fields to purge, by time: o|, O|, r|, k| as in records, c| as in counters;
//                   n|<id>, N|<generation>|<id>, at 0: an expiry that reap has not reported; '' at +inf, as in pending
//
// Scopes are percent-encoded (all but ':'), so that they never contain a separator.
//
// The scripts run often. A Lua closure costs as much as a small command, and a pattern reads every byte. So rare code
// is in blocks and not in functions, and only the changing part of a record is unpacked.

/**
 * Defines the server's time, lists, and arithmetic on amounts. Amounts are decimal strings, because a Lua
 * number is exact only up to 2^53. Beyond 15 digits they are added in two limbs of 10^9.
 */
const BASICS = `${NOW_MS}
local format, match, gmatch = string.format, string.match, string.gmatch
local now = format('%d', nowMs)

local function split(list)
  local parts, n = {}, 0
  for part in gmatch(list, '[^;]+') do
    n = n + 1
    parts[n] = part
  end
  return parts
end

local function less(a, b)
  return #a < #b or (#a == #b and a < b)
end

local function plus(a, b)
  if #a < 16 and #b < 16 then return format('%d', a + b) end
  a, b = format('%28s', a), format('%28s', b)
  local low = (tonumber(string.sub(a, 20)) or 0) + (tonumber(string.sub(b, 20)) or 0)
  local high = (tonumber(string.sub(a, 1, 19)) or 0) + (tonumber(string.sub(b, 1, 19)) or 0)
  if low >= 1000000000 then high, low = high + 1, low - 1000000000 end
  return high == 0 and format('%d', low) or format('%d%09d', high, low)
end

-- Returns a - b, but never less than 0.
local function minus(a, b)
  if less(a, b) then return '0' end
  if #a < 16 then return format('%d', a - b) end
  a, b = format('%28s', a), format('%28s', b)
  local low = (tonumber(string.sub(a, 20)) or 0) - (tonumber(string.sub(b, 20)) or 0)
  local high = (tonumber(string.sub(a, 1, 19)) or 0) - (tonumber(string.sub(b, 1, 19)) or 0)
  if low < 0 then high, low = high - 1, low + 1000000000 end
  return high == 0 and format('%d', low) or format('%d%09d', high, low)
end

local function foreign(what)
  error('SYNCGUARD_FOREIGN ' .. what, 0)
end`;

export const COUNTER = "'^(%d+) (%d+) (%d+) (%d+) (%S+)$'";
const RECORD = "'^(%a) (%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%d+) (%S+)$'";

/** Unpacks `record` into locals. Fails if it is no record of ours, or if its fixed part `detail` is missing. */
export const OPEN_RECORD = `
local state, kind, generationOf, amountOf, actualOf, committedOf, refundedOf, uncoveredOf, lateOf, createdAtMs,
  expiresAtMs, endedAtMs, crossed = match(record, ${RECORD})
if not state or not detail then foreign('not a budget record') end`;

const DROP_DUE = "redis.call('ZREM', pending, unpack(due))";

/**
 * Settles expired holds before anything else is read, so that no sum includes them. A batch of full size may
 * leave others, so the script then replies 'more' and is called again. Everything is read before the first
 * write.
 *
 * A full server (`maxmemory` with `noeviction`) checks a script at its first write only, and refuses it there
 * if the command needs memory. So scripts that settle or free memory start with a ZREM, and scripts that need
 * memory for themselves do it last.
 */
const expireDue = (max: string, needs: 'no memory' | 'memory'): string => `
local due = redis.call('ZRANGEBYSCORE', pending, '-inf', now, 'LIMIT', 0, ${max})
if #due > 0 then
  redis.call('ZCARD', garbage)
  local keys = {}
  for i, id in ipairs(due) do
    keys[2 * i - 1] = 'o|' .. id
    keys[2 * i] = 'd|' .. id
  end
  local found = redis.call('HMGET', records, unpack(keys))
  local touched, expired, last = {}, {}, {}
  for i, id in ipairs(due) do
    local record, detail = found[2 * i - 1], found[2 * i]
    if record and string.sub(record, 1, 2) == 'p ' then
      ${OPEN_RECORD}
      local untilMs, fields, ends = match(detail, '^%S+ (%d+) (%S+) %S+ %S+ (%S+)')
      expired[id] = { head = table.concat({ 'x', kind, generationOf, amountOf, actualOf, committedOf, refundedOf, uncoveredOf, lateOf,
        createdAtMs, expiresAtMs, expiresAtMs, crossed }, ' '), endedAtMs = tonumber(expiresAtMs) }
      local stops, j = split(ends), 0
      for field in gmatch(fields, 'c|[^;]+') do
        j = j + 1
        touched[field] = touched[field] or { match(redis.call('HGET', counters, field) or '0 0 0 0 0', ${COUNTER}) }
        if not touched[field][1] then foreign('not a budget counter') end
        touched[field][2] = minus(touched[field][2], amountOf)
        -- The counter of a past window is kept 1 ms longer than the last operation that uses it.
        if stops[j] ~= '0' then last[field] = math.max(last[field] or 0, tonumber(stops[j]), tonumber(expiresAtMs)) end
      end
    end
  end
  ${needs === 'no memory' ? DROP_DUE : ''}
  for field, counter in pairs(touched) do redis.call('HSET', counters, field, table.concat(counter, ' ')) end
  for field, ms in pairs(last) do redis.call('ZADD', garbage, 'GT', format('%d', ms + retentionMs + 1), field) end
  for id, operation in pairs(expired) do
    redis.call('HSET', records, 'o|' .. id, operation.head)
    redis.call('ZADD', garbage, format('%d', operation.endedAtMs + retentionMs), 'o|' .. id, 0, 'n|' .. id)
  end
  ${needs === 'memory' ? DROP_DUE : ''}
end`;

const start = (needs: 'no memory' | 'memory'): string => `local BATCH = 100
${BASICS}
${expireDue('BATCH', needs)}
if #due == BATCH then return { 'more' } end`;

/** The beginning of every script that writes something new. */
export const START = start('memory');

/** The beginning of the other scripts that may write or that reply balances. */
export const START_SETTLING = start('no memory');

/** The beginning of the reaper, which takes its batch size as an argument. */
export const START_REAPING = `${BASICS}
max = tonumber(max)
${expireDue('max', 'no memory')}`;

/**
 * Reads the counters of `fields` (which start with '~') into `packed`, and the end of the keys into `ending`.
 * `own` gets the limits that setLimit has set for the scopes themselves, and `general` those for their types.
 * In `limitOf` they replace the configured limits. But a limit for a type does not replace one that is
 * configured for the scope itself.
 */
const readCounters = (alsoIf: string): string => `
local packed = redis.call('HMGET', counters, unpack(split(fields)))
local ending = table.remove(packed, 1)
local limitOf = split(limits)
local own, general, setOf = {}, {}, nil
if ending == 'never l'${alsoIf} then
  local function stored(name)
    local list = {}
    for period, limit in gmatch(redis.call('HGET', counters, 'l|' .. name) or '', '([^ =]+)=([^ =]+)') do list[period] = limit end
    return list
  end
  for name in gmatch(scopes, '[^,]+') do
    own[name] = stored(name)
    general[name] = match(name, '^([^:]+):') and stored(match(name, '^([^:]+):')) or {}
  end
  local inherits = split(inherited)
  local i = 0
  setOf = {}
  for name, period in gmatch(fields, 'c|([^|]+)|([^|]+)|') do
    i = i + 1
    local configured = limitOf[i] ~= '-' and limitOf[i] or nil
    local isOwn = inherits[i] == '0' and configured
    setOf[i] = own[name][period] or not isOwn and general[name][period] or '-'
    limitOf[i] = setOf[i] ~= '-' and setOf[i] or configured or '-'
  end
end`;

export const READ_COUNTERS = readCounters('');

/**
 * Checks that the entries are complete and that their windows are open. Replies 'stale' where a window does
 * not contain the server's time, 'periods' where setLimit has limited a period that the client does not know,
 * and 'no_limit' where a scope has no limit. `plain` is 1 where every scope has a configured limit, so that
 * without setLimit nothing can be missing.
 */
export const ADMIT = `
if nowMs < tonumber(openFromMs) or (openUntilMs ~= '0' and nowMs >= tonumber(openUntilMs)) then return { 'stale', now } end
${readCounters(" or plain ~= '1'")}
if ending == 'never l' or plain ~= '1' then
  local known, covered, unknown = {}, {}, {}
  local names, stops, levels, inherits = split(fields), split(ends), split(thresholds), split(inherited)
  local at = { fields = { '~' }, limits = {}, ends = {}, thresholds = {}, inherited = {}, packed = {},
    configured = {}, set = {} }
  local configured = split(limits)
  for i, limit in ipairs(limitOf) do
    local name, period = match(names[i + 1], '^c|([^|]+)|([^|]+)|')
    known[name .. '|' .. period] = true
    -- Where an entry has no limit, the limit that setLimit had set for it was cleared.
    if limit ~= '-' then
      covered[name] = true
      local n = #at.limits + 1
      at.fields[n + 1], at.limits[n], at.ends[n], at.inherited[n] = names[i + 1], limit, stops[i], inherits[i]
      at.thresholds[n], at.packed[n], at.configured[n], at.set[n] = levels[i] or '-', packed[i], configured[i], setOf[i]
    end
  end
  for name in gmatch(scopes, '[^,]+') do
    for _, list in ipairs({ own[name], general[name] }) do
      for period in pairs(list) do
        if not known[name .. '|' .. period] then unknown[#unknown + 1] = name .. '|' .. period end
      end
    end
  end
  if #unknown > 0 then return { 'periods', now, unpack(unknown) } end
  for name in gmatch(scopes, '[^,]+') do
    if not covered[name] then return { 'no_limit', name } end
  end
  fields, limits, ends = table.concat(at.fields, ';'), table.concat(at.configured, ';'), table.concat(at.ends, ';')
  inherited, thresholds = table.concat(at.inherited, ';'), thresholds ~= '-' and table.concat(at.thresholds, ';') or '-'
  limitOf, packed, setOf = at.limits, at.packed, at.set
end`;

/** Returns the room of entry i, or nil if it is unlimited or its limit was cleared. */
export const ROOM = `
local function roomOf(i)
  local limit = limitOf[i]
  if limit == 'u' or limit == '-' then return nil end
  local committed, reserved, credits = match(packed[i] or '0 0 0 0 0', ${COUNTER})
  if not committed then foreign('not a budget counter') end
  return minus(plus(limit, credits), plus(committed, reserved))
end`;

/** Returns whether a sum has reached a percentage of a limit, computed in limbs. */
const REACHES = `
  local function times(amount, factor)
    local text = format('%28s', amount)
    local low = (tonumber(string.sub(text, 20)) or 0) * factor
    local carry = math.floor(low / 1000000000)
    return (tonumber(string.sub(text, 1, 19)) or 0) * factor + carry, low - carry * 1000000000
  end
  local function reaches(usedHigh, usedLow, percent, effective)
    local high, low = times(effective, tonumber(percent))
    return usedHigh > high or (usedHigh == high and usedLow >= low)
  end`;

/**
 * Arms the thresholds of entry i again that are above its current usage. An armed threshold is reported when it
 * is reached. `levels` are its thresholds. `note` is the limit of setLimit that they were checked against.
 */
const REARM = `
  ${REACHES}
  local function rearm(i, levels, note)
    local committed, reserved, credits, archived, highest = match(packed[i], '^(%d+) (%d+) (%d+) (%d+) (%d+)')
    local still = 0
    if limitOf[i] ~= 'u' and limitOf[i] ~= '-' then
      local usedHigh, usedLow = times(plus(committed, reserved), 100)
      for percent in gmatch(levels, '%d+') do
        if tonumber(percent) <= tonumber(highest) and reaches(usedHigh, usedLow, percent, plus(limitOf[i], credits)) then
          still = percent
        end
      end
    end
    packed[i] = table.concat({ committed, reserved, credits, archived, still .. note }, ' ')
  end`;

/**
 * Applies changes of setLimit to the thresholds, before the current step counts. A raised limit arms them
 * again. Sets `isNew` where a counter does not exist yet.
 */
export const ARM = `
local isNew = false
for i = 1, #limitOf do
  if not packed[i] then isNew = true end
end
if ending == 'never l' and thresholds ~= '-' then
  ${REARM}
  local levels, configured = split(thresholds), split(limits)
  for i = 1, #limitOf do
    local counted, percent, seen = match(packed[i] or '0 0 0 0 0', '^(%d+ %d+ %d+ %d+) (%d+)=?(%S*)$')
    if not counted then foreign('not a budget counter') end
    if seen == '' then seen = '-' end
    if levels[i] ~= '-' and seen ~= setOf[i] then
      local note = setOf[i] ~= '-' and '=' .. setOf[i] or ''
      local before, limit = seen ~= '-' and seen or configured[i], limitOf[i]
      local isRaised = before ~= 'u' and before ~= '-' and (limit == 'u' or limit == '-' or less(before, limit))
      if isRaised and packed[i] then rearm(i, levels[i], note)
      else packed[i] = counted .. ' ' .. percent .. note end
    end
  end
end`;

/** Arms the thresholds of entry 1 again after a credit. */
export const ARM_CREDITED = `
if amount ~= '0' and thresholds ~= '-' then
  ${REARM}
  rearm(1, thresholds, match(packed[1], '=%S+$') or '')
end`;

/**
 * Finds the armed thresholds that are now reached. Stores them in `crossed`, as one list for each entry joined by
 * ';'. Stores the highest one in the counter.
 */
export const CROSS = `
if thresholds ~= '-' then
  ${REACHES}
  local lists = {}
  for i, percents in ipairs(split(thresholds)) do
    lists[i] = '-'
    local committed, reserved, credits, archived, highest, note = match(packed[i], '^(%d+) (%d+) (%d+) (%d+) (%d+)(%S*)$')
    local limit = limitOf[i]
    local effective = limit ~= 'u' and limit ~= '-' and plus(limit, credits)
    if effective and effective ~= '0' then
      local usedHigh, usedLow = times(plus(committed, reserved), 100)
      local reached = {}
      for percent in gmatch(percents, '%d+') do
        if tonumber(percent) > tonumber(highest) and reaches(usedHigh, usedLow, percent, effective) then
          reached[#reached + 1] = percent
          highest = percent
        end
      end
      if #reached > 0 then
        lists[i] = table.concat(reached, ',')
        packed[i] = table.concat({ committed, reserved, credits, archived, highest .. note }, ' ')
      end
    end
  end
  crossed = table.concat(lists, ';')
end`;

/**
 * Sets when the four keys end. They end together, and only if every period ends: `untilMs` is nil if one does
 * not. The end is set an hour late, so that it rarely has to move. A member that no operation removes keeps
 * each key alive until then. The first write goes to `garbage`, the only key that may not have been
 * read, so that a wrong type fails before anything is written.
 */
export const KEEP_KEYS = `
if ending ~= 'never' and ending ~= 'never l' and (not ending or not untilMs or untilMs > tonumber(ending)) then
  local SLACK_MS = 3600000
  local keys = { garbage, counters, records, pending }
  if untilMs then
    local endMs = format('%d', untilMs + SLACK_MS)
    redis.call('ZADD', garbage, '+inf', '')
    redis.call('HSET', counters, '~', endMs)
    redis.call('HSET', records, '~', '')
    redis.call('ZADD', pending, '+inf', '')
    for _, key in ipairs(keys) do redis.call('PEXPIREAT', key, endMs) end
  else
    redis.call('HSET', counters, '~', 'never')
    if ending then for _, key in ipairs(keys) do redis.call('PERSIST', key) end end
  end
end`;

/**
 * Writes the counters in `packed`. A window that opens, or that is past, is scheduled for purging after its
 * retention.
 */
export const WRITE_COUNTERS = `
do
  local names = split(fields)
  local isOpen = openUntilMs == '0' or nowMs < tonumber(openUntilMs)
  if isNew or not isOpen then
    local stops = split(ends)
    for i = 1, #packed do
      if stops[i] ~= '0' then
        redis.call('ZADD', garbage, 'GT', format('%d', math.max(tonumber(stops[i]), nowMs) + retentionMs + 1), names[i + 1])
      end
    end
  end
  local writes = {}
  for i = 1, #packed do
    writes[2 * i - 1] = names[i + 1]
    writes[2 * i] = packed[i]
  end
  redis.call('HSET', counters, unpack(writes))
end`;
