import { NOW_MS } from '../script/fragments.js';

// What lies in a root's four keys (lists inside a value are joined by ';'):
//
//   counters  HASH  c|<scope>|<period>|<startMs>  committed reserved credits archived crossed, the last of them the
//                               highest threshold that was crossed: percent, or percent=limit where setLimit set one
//                   l|<scope>   limits by setLimit: period=limit period=limit
//                   ~           when the keys end, in ms, or 'never', or 'never l' once setLimit was used
//   records   HASH  o|<id>      an operation: state kind generation amount actual committed refunded uncovered late
//                               createdAtMs expiresAtMs endedAtMs crossed
//                   d|<id>      what does not change of it: nonce openUntilMs fields limits thresholds ends inherited
//                               scopes meta
//                   O|<generation>|<id>, D|<generation>|<id>  the same of a hold that was renewed since
//                   r|<refundId>, k|<creditId>  what was refunded, credited
//   pending   ZSET  <id> of each pending hold, by expiry; '' (which no id is) at +inf, where the keys end
//   garbage   ZSET  what is to be forgotten, by when: o|, O|, r|, k| as in records, c| as in counters;
//                   n|<id>, N|<generation>|<id>, at 0: an expiry that reap has not told yet; '' at +inf, as in pending
//
// Scopes are percent-encoded (all but ':'), so that no separator is ever part of one.
//
// The scripts are hot: a Lua closure costs as much as a small command, and patterns run over every byte. So what
// happens seldom stands in blocks, not in functions, and only what changes is taken apart.

/**
 * The server's time, lists, and sums of amounts. Amounts are decimal strings, because a Lua number is exact to 2^53
 * only; beyond 15 digits they are added in two limbs of 10^9.
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

-- Never below zero.
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

/** Takes the record apart into locals; `detail` up to what a settlement needs. */
export const OPEN_RECORD = `
local state, kind, generationOf, amountOf, actualOf, committedOf, refundedOf, uncoveredOf, lateOf, createdAtMs,
  expiresAtMs, endedAtMs, crossed = match(record, ${RECORD})
if not state or not detail then foreign('not a budget record') end`;

const DROP_DUE = "redis.call('ZREM', pending, unpack(due))";

/**
 * Holds whose time is up go back before anything else is looked at, so that all below sees none of them. A full batch
 * may not be all: then the script ends with 'more', and is called again. All is read before the first write.
 *
 * A full server (`maxmemory`, `noeviction`) refuses a script at its first write, if that needs memory, and at none
 * after it. So what settles or frees drops them first, and what needs memory for itself drops them last.
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
        -- A past window outlives the last operation that touched it, by a moment.
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

/** What every script starts with that writes something new. */
export const START = start('memory');

/** What every other one starts with that may write or tells balances. */
export const START_SETTLING = start('no memory');

/** The same for the reaper, which expires as many as it is told. */
export const START_REAPING = `${BASICS}
max = tonumber(max)
${expireDue('max', 'no memory')}`;

/**
 * Reads the counters of `fields` (which start with '~') into `held`, and when the keys end into `ending`; a limit that
 * setLimit set takes its place in `limits`, beside its scope's others in `own` and `general`.
 */
const readCounters = (alsoIf: string): string => `
local held = redis.call('HMGET', counters, unpack(split(fields)))
local ending = table.remove(held, 1)
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
 * Admits entries only at their time and complete: 'stale' when a window does not hold the server's now, 'periods' when
 * setLimit has limited one that the client did not know of, 'no_limit' when a scope has none at all. \`plain\` says
 * that every scope has a configured limit, so that without setLimit there is nothing to look for.
 */
export const ADMIT = `
if nowMs < tonumber(openFromMs) or (openUntilMs ~= '0' and nowMs >= tonumber(openUntilMs)) then return { 'stale', now } end
${readCounters(" or plain ~= '1'")}
if ending == 'never l' or plain ~= '1' then
  local known, covered, unknown = {}, {}, {}
  local names, stops, levels, inherits = split(fields), split(ends), split(thresholds), split(inherited)
  local at = { fields = { '~' }, limits = {}, ends = {}, thresholds = {}, inherited = {}, held = {},
    configured = {}, set = {} }
  local configured = split(limits)
  for i, limit in ipairs(limitOf) do
    local name, period = match(names[i + 1], '^c|([^|]+)|([^|]+)|')
    known[name .. '|' .. period] = true
    -- An entry without a limit is one that setLimit limited once, and does no more.
    if limit ~= '-' then
      covered[name] = true
      local n = #at.limits + 1
      at.fields[n + 1], at.limits[n], at.ends[n], at.inherited[n] = names[i + 1], limit, stops[i], inherits[i]
      at.thresholds[n], at.held[n], at.configured[n], at.set[n] = levels[i] or '-', held[i], configured[i], setOf[i]
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
  limitOf, held, setOf = at.limits, at.held, at.set
end`;

/** What there is room for in entry i; nil: anything. A limit that was cleared since counts no more. */
export const ROOM = `
local function roomOf(i)
  local limit = limitOf[i]
  if limit == 'u' or limit == '-' then return nil end
  local committed, reserved, credits = match(held[i] or '0 0 0 0 0', ${COUNTER})
  if not committed then foreign('not a budget counter') end
  return minus(plus(limit, credits), plus(committed, reserved))
end`;

/** Whether a sum has reached a percentage of a limit, in limbs. */
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
 * Arms those thresholds of entry i again that lie above the usage that is left: `levels` are the entry's thresholds,
 * `note` is the limit by setLimit that this was worked out for.
 */
const REARM = `
  ${REACHES}
  local function rearm(i, levels, note)
    local committed, reserved, credits, archived, highest = match(held[i], '^(%d+) (%d+) (%d+) (%d+) (%d+)')
    local still = 0
    if limitOf[i] ~= 'u' and limitOf[i] ~= '-' then
      local usedHigh, usedLow = times(plus(committed, reserved), 100)
      for percent in gmatch(levels, '%d+') do
        if tonumber(percent) <= tonumber(highest) and reaches(usedHigh, usedLow, percent, plus(limitOf[i], credits)) then
          still = percent
        end
      end
    end
    held[i] = table.concat({ committed, reserved, credits, archived, still .. note }, ' ')
  end`;

/**
 * What setLimit has changed since an entry's last step is applied to its thresholds, before this step counts: a limit
 * that was raised arms them again. Tells in `isNew` whether a counter is not there yet.
 */
export const ARM = `
local isNew = false
for i = 1, #limitOf do
  if not held[i] then isNew = true end
end
if ending == 'never l' and thresholds ~= '-' then
  ${REARM}
  local levels, configured = split(thresholds), split(limits)
  for i = 1, #limitOf do
    local counted, percent, seen = match(held[i] or '0 0 0 0 0', '^(%d+ %d+ %d+ %d+) (%d+)=?(%S*)$')
    if not counted then foreign('not a budget counter') end
    if seen == '' then seen = '-' end
    if levels[i] ~= '-' and seen ~= setOf[i] then
      local note = setOf[i] ~= '-' and '=' .. setOf[i] or ''
      local before, limit = seen ~= '-' and seen or configured[i], limitOf[i]
      local isRaised = before ~= 'u' and before ~= '-' and (limit == 'u' or limit == '-' or less(before, limit))
      if isRaised and held[i] then rearm(i, levels[i], note)
      else held[i] = counted .. ' ' .. percent .. note end
    end
  end
end`;

/** A credit has raised entry 1: arms its thresholds again. */
export const ARM_CREDITED = `
if amount ~= '0' and thresholds ~= '-' then
  ${REARM}
  rearm(1, thresholds, match(held[1], '=%S+$') or '')
end`;

/**
 * Notes in \`crossed\` and in the counters which thresholds are reached for the first time: a list an entry, joined by
 * ';'.
 */
export const CROSS = `
if thresholds ~= '-' then
  ${REACHES}
  local lists = {}
  for i, percents in ipairs(split(thresholds)) do
    lists[i] = '-'
    local committed, reserved, credits, archived, highest, note = match(held[i], '^(%d+) (%d+) (%d+) (%d+) (%d+)(%S*)$')
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
        held[i] = table.concat({ committed, reserved, credits, archived, highest .. note }, ' ')
      end
    end
  end
  crossed = table.concat(lists, ';')
end`;

/**
 * The four keys end together, and only where every period does: \`untilMs\` is nil where one does not. They move
 * forward an hour at a time, and a member that no operation removes keeps each of them in being until then. The first
 * write goes to the one key that may not have been read: a wrong type fails there.
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

/** Writes \`held\`; a window that opens, or is past, is forgotten when retention has ended for it. */
export const WRITE_COUNTERS = `
do
  local names = split(fields)
  local isOpen = openUntilMs == '0' or nowMs < tonumber(openUntilMs)
  if isNew or not isOpen then
    local stops = split(ends)
    for i = 1, #held do
      if stops[i] ~= '0' then
        redis.call('ZADD', garbage, 'GT', format('%d', math.max(tonumber(stops[i]), nowMs) + retentionMs + 1), names[i + 1])
      end
    end
  end
  local writes = {}
  for i = 1, #held do
    writes[2 * i - 1] = names[i + 1]
    writes[2 * i] = held[i]
  end
  redis.call('HSET', counters, unpack(writes))
end`;
