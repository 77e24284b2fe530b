import { defineScript, type Script } from '../../script/define-script.js';
import { NOW_MS, takeApart } from '../../script/fragments.js';
import {
  admit,
  ARM,
  ARM_CREDITED,
  COUNTER,
  CROSS,
  KEEP_KEYS,
  openRecord,
  PLUS,
  READ_BALANCES,
  READ_COUNTERS,
  ROOM,
  START,
  START_REAPING,
  START_SETTLING,
  WRITE_COUNTERS,
} from './budget.fragments.js';
import { textReply } from './budget.replies.js';

/** The four keys of a root. Every script declares all of them. */
export const BUDGET_KEYS = ['counters', 'records', 'pending', 'garbage'] as const;

/** The entries in which an operation counts: a scope, period and window each, with its configured limit. */
const ENTRIES = [
  'scopes',
  'fields',
  'limits',
  'thresholds',
  'ends',
  'inherited',
  // All of the windows are open between these two. 0: without end.
  'openFromMs',
  'openUntilMs',
  // When the last window ends. 0: never.
  'lastEndMs',
  'plain',
] as const;

const DETAIL =
  "table.concat({ nonce, openUntilMs, fields, limits, thresholds, ends, inherited, scopes, meta }, ' ')";

// Reads the newest operation of an id. A repeated call is answered with its record and its current balances.
const READ_NEWEST = `
local record, detail = unpack(redis.call('HMGET', records, 'o|' .. id, 'd|' .. id))`;

/** The arguments that refer to a hold. */
const REF = ['id', 'generation', 'nonce'] as const;

/**
 * Finds the hold of a generation (0: the newest). Generations start at 1 again once an id was purged, so a
 * hold with another nonce is not found ('-' accepts any).
 */
const READ_OPERATION = `
local slot = 'o|' .. id
local record, detail = unpack(redis.call('HMGET', records, slot, 'd|' .. id))
if record and generation ~= '0' and generation ~= string.match(record, '^%a %a (%d+)') then
  slot = 'O|' .. generation .. '|' .. id
  record, detail = unpack(redis.call('HMGET', records, slot, 'D|' .. generation .. '|' .. id))
end
if not record or not detail then return { 'not_found' } end
if nonce ~= '-' and string.sub(detail, 1, #nonce + 1) ~= nonce .. ' ' then return { 'not_found' } end`;

const DETAIL_FIELDS = {
  nonce: '%S+',
  openUntilMs: '%d+',
  fields: '%S+',
  limits: '%S+',
  thresholds: '%S+',
  ends: '%S+',
  inherited: '%S+',
  scopes: '%S+',
  meta: '.*',
};

/** Sets the entries in which an operation has counted. */
const OPEN_DETAIL = `
local ${takeApart('detail', DETAIL_FIELDS, ['openUntilMs', 'fields', 'limits', 'thresholds', 'ends', 'inherited', 'scopes'])}
if not fields then foreign('not a budget record') end`;

const ENTRY_LISTS = "fields, ends,\n  table.concat(limitOf, ';'), table.concat(packed, ';')";

/** Answers a repeated call with the entries of the first one, in place of those of its arguments. */
const REPLAY = `
    ${takeApart('detail', DETAIL_FIELDS, ['fields', 'limits', 'ends', 'inherited', 'scopes'])}
    if not fields then foreign('not a budget record') end
    ${READ_BALANCES}
    return { 'replayed', record, ${ENTRY_LISTS}, match(detail, '^%S+') }`;

// Scopes are compared as sets, since a retry may list them in another order.
const sameContent = (ofKind: string): string => `
  local function sorted(list)
    local names = {}
    for name in gmatch(list, '[^,]+') do names[#names + 1] = name end
    table.sort(names)
    return table.concat(names, ',')
  end
  local scopesBefore = match(detail, '^%S+ %d+ %S+ %S+ %S+ %S+ %S+ (%S+) ')
  local isSame = kind == '${ofKind}' and amountOf == amount and sorted(scopesBefore) == sorted(scopes)`;

// The scripts leave this out for an amount of 0, because it needs no room.
const REFUSE_EXCEEDED = `
  local stops, full = nil, { {}, {}, {}, {} }
  for i, limit in ipairs(limitOf) do
    if limit ~= 'u' then
      local committed, reserved, credits = match(packed[i], ${COUNTER})
      if not committed then foreign('not a budget counter') end
      local effective = credits ~= '0' and plus(limit, credits) or limit
      if less(effective, plus(plus(committed, reserved), amount)) then
        stops = stops or split(ends)
        local n = #full[1] + 1
        full[1][n], full[2][n], full[3][n], full[4][n] = names[i], stops[i], limit, packed[i]
      end
    end
  end
  if stops then
    for i = 1, 4 do full[i] = table.concat(full[i], ';') end
    return { 'exceeded', amount, now, unpack(full) }
  end`;

/**
 * Reserves an amount in all entries, or in none. Where an earlier hold of the id ended without spending, a
 * hold of the next generation follows it, unless mode is 'reserve'. A pending hold is answered again. With
 * mode 'run' this happens only for the call that created it, which has the same nonce.
 *
 * Replies ['reserved', record, fields, ends, limits, counters], ['replayed', the same and the nonce],
 * ['exceeded', amount, now, fields, ends, limits, counters], ['pending', record, detail, now], or ['conflict'
 * | 'already_finalized' | 'already_aborted' | 'already_expired', record, detail].
 */
export const reserveScript = defineScript({
  name: 'budget-reserve',
  keys: BUDGET_KEYS,
  args: ['id', 'amount', 'ttlMs', 'meta', 'mode', 'nonce', 'retentionMs', ...ENTRIES],
  lua: `${START}${PLUS}
${READ_NEWEST}
local generation, before = '1', nil
if record then
  ${openRecord('state', 'kind', 'generationOf', 'amountOf')}
  local isOurs = nonce ~= '-' and string.sub(detail, 1, #nonce + 1) == nonce .. ' '
  if state == 'f' then return { 'already_finalized', record, detail } end
  if state == 'p' then
    if mode == 'run' and not isOurs then return { 'pending', record, detail, now } end
    ${sameContent('h')}
    if not isSame then return { 'conflict', record, detail } end
    ${REPLAY}
  end
  if mode == 'reserve' or isOurs then
    return { state == 'a' and 'already_aborted' or 'already_expired', record, detail }
  end
  generation = format('%d', generationOf + 1)
  before = { name = generationOf .. '|' .. id, record = record, detail = detail,
    untilMs = redis.call('ZSCORE', garbage, 'o|' .. id) or now }
end
${admit('limits', 'inherited', 'thresholds')}
if amount ~= '0' then
${REFUSE_EXCEEDED}
end

${ARM}
for i = 1, #limitOf do
  local committed, reserved, rest = match(packed[i], '^(%d+) (%d+) (%d+ %d+ %S+)$')
  if not committed then foreign('not a budget counter') end
  packed[i] = committed .. ' ' .. plus(reserved, amount) .. ' ' .. rest
end
local crossed = '-'
${CROSS}
local expiresAtMs = nowMs + ttlMs
local untilMs = lastEndMs ~= '0' and math.max(tonumber(lastEndMs), expiresAtMs) + 2 * retentionMs or nil
expiresAtMs = format('%d', expiresAtMs)
record = table.concat({ 'p h', generation, amount, '0 0 0 0 0', now, expiresAtMs, 0, crossed }, ' ')
detail = ${DETAIL}
${KEEP_KEYS}
if before then
  redis.call('ZADD', garbage, before.untilMs, 'O|' .. before.name)
  redis.call('ZREM', garbage, 'o|' .. id)
  if redis.call('ZREM', garbage, 'n|' .. id) == 1 then redis.call('ZADD', garbage, 0, 'N|' .. before.name) end
  redis.call('HSET', records, 'O|' .. before.name, before.record, 'D|' .. before.name, before.detail)
end
${WRITE_COUNTERS}
redis.call('HSET', records, 'o|' .. id, record, 'd|' .. id, detail)
redis.call('ZADD', pending, expiresAtMs, id)
return { 'reserved', record, ${ENTRY_LISTS} }`,
  decode: textReply,
});

/**
 * Commits an amount in one step. Replies 'charged', 'replayed', 'exceeded' or 'conflict', in the shapes of
 * budget-reserve.
 */
export const chargeScript = defineScript({
  name: 'budget-charge',
  keys: BUDGET_KEYS,
  args: ['id', 'amount', 'mode', 'retentionMs', ...ENTRIES],
  lua: `${START}${PLUS}
${READ_NEWEST}
if record then
  ${openRecord('kind', 'amountOf')}
  ${sameContent('c')}
  if not isSame then return { 'conflict', record, detail } end
  ${REPLAY}
end
${admit('limits', 'inherited', 'thresholds')}
local uncovered = '0'
if mode == 'record' then
  ${ROOM}
  for i = 1, #limitOf do
    local room = roomOf(i)
    local missing = room and minus(amount, room) or '0'
    if less(uncovered, missing) then uncovered = missing end
  end
elseif amount ~= '0' then
${REFUSE_EXCEEDED}
end

${ARM}
for i = 1, #limitOf do
  local committed, rest = match(packed[i], '^(%d+) (%d+ %d+ %d+ %S+)$')
  if not committed then foreign('not a budget counter') end
  packed[i] = plus(committed, amount) .. ' ' .. rest
end
local crossed, meta, nonce = '-', '', '-'
${CROSS}
local untilMs = lastEndMs ~= '0' and tonumber(lastEndMs) + 2 * retentionMs or nil
record = table.concat({ 'f c', 1, amount, amount, amount, 0, uncovered, 0, now, now, now, crossed }, ' ')
detail = ${DETAIL}
redis.call('ZADD', garbage, nowMs + retentionMs, 'o|' .. id)
${KEEP_KEYS}
${WRITE_COUNTERS}
redis.call('HSET', records, 'o|' .. id, record, 'd|' .. id, detail)
return { 'charged', record, ${ENTRY_LISTS} }`,
  decode: textReply,
});

/**
 * The first write of a script that settles. A full server allows ZREM, and then every write after it. The
 * script adds the member again, or the member was not there.
 */
const WRITE_ANYWAY = `redis.call('ZREM', garbage, slot)`;

/** Ends an operation. Expects its new counters in `packed` and its new record in `record`. */
const END_OPERATION = `
local untilMs = nowMs + 2 * retentionMs
${WRITE_ANYWAY}
redis.call('ZADD', garbage, nowMs + retentionMs, slot)
${KEEP_KEYS}
${WRITE_COUNTERS}
redis.call('HSET', records, slot, record)
if slot == 'o|' .. id then redis.call('ZREM', pending, id) end`;

/**
 * Commits what was really spent and ends the hold. Replies ['finalized' | 'replayed', record, fields, ends,
 * limits, counters], ['overage_rejected' | 'conflict' | 'aborted' | 'expired', record, detail], or
 * ['not_found'].
 */
export const finalizeScript = defineScript({
  name: 'budget-finalize',
  keys: BUDGET_KEYS,
  args: [...REF, 'actual', 'overage', 'late', 'retentionMs'],
  lua: `${START_SETTLING}${PLUS}
${READ_OPERATION}
${openRecord('state', 'kind', 'generationOf', 'amountOf', 'actualOf', 'createdAtMs', 'expiresAtMs')}
if state == 'a' then return { 'aborted', record, detail } end
if state == 'f' and actualOf ~= actual then return { 'conflict', record, detail } end
${OPEN_DETAIL}
${READ_COUNTERS}
if state == 'f' then return { 'replayed', record, ${ENTRY_LISTS} } end

local isLate = state == 'x'
local inHold = isLate and '0' or amountOf
local booked, uncovered = actual, '0'
if less(inHold, actual) then
  ${ROOM}
  local beyond = minus(actual, inHold)
  local covered = beyond
  for i = 1, #limitOf do
    local room = roomOf(i)
    if room and less(room, covered) then covered = room end
  end
  if isLate and (late == 'reject' or (late == 'if-available' and covered ~= beyond)) then
    return { 'expired', record, detail }
  end
  if less(amountOf, actual) then
    if overage == 'reject' then return { 'overage_rejected', record, detail } end
    if overage == 'cap' then
      booked = plus(inHold, covered)
      -- The part up to the hold is always committed, also after the hold has expired.
      if less(booked, amountOf) then booked = amountOf end
    end
  end
  uncovered = minus(beyond, covered)
elseif isLate and late == 'reject' then
  return { 'expired', record, detail }
end

${ARM}
for i = 1, #limitOf do
  local spent, reserved, rest = match(packed[i], '^(%d+) (%d+) (%d+ %d+ %S+)$')
  if not spent then foreign('not a budget counter') end
  packed[i] = plus(spent, booked) .. ' ' .. minus(reserved, inHold) .. ' ' .. rest
end
local crossed = '-'
-- Spending no more than the hold reserved reaches no threshold.
if less(inHold, booked) then
${CROSS}
end
record = table.concat({ 'f', kind, generationOf, amountOf, actual, booked, 0, uncovered, isLate and 1 or 0,
  createdAtMs, expiresAtMs, now, crossed }, ' ')
${END_OPERATION}
return { 'finalized', record, ${ENTRY_LISTS} }`,
  decode: textReply,
});

/**
 * Ends a hold without spending. Replies ['aborted' | 'replayed' | 'finalized' | 'expired' (of an older
 * generation), record, detail], or ['not_found'].
 */
export const abortScript = defineScript({
  name: 'budget-abort',
  keys: BUDGET_KEYS,
  args: [...REF, 'retentionMs'],
  lua: `${START_SETTLING}${PLUS}
${READ_OPERATION}
local state, middle, amountOf, dates, crossed =
  match(record, '^(%a) (%a %d+ (%d+) %d+ %d+ %d+ %d+) %d (%d+ %d+) %d+ (%S+)$')
if not state then foreign('not a budget record') end
if state == 'f' then return { 'finalized', record, detail } end
if state == 'a' then return { 'replayed', record, detail } end
if slot ~= 'o|' .. id then return { 'expired', record, detail } end
${OPEN_DETAIL}
${READ_COUNTERS}
${ARM}
local inHold = state == 'p' and amountOf or '0'
for i = 1, #limitOf do
  local committed, reserved, rest = match(packed[i], '^(%d+) (%d+) (%d+ %d+ %S+)$')
  if not committed then foreign('not a budget counter') end
  packed[i] = committed .. ' ' .. minus(reserved, inHold) .. ' ' .. rest
end
record = table.concat({ 'a', middle, state == 'x' and 1 or 0, dates, now, crossed }, ' ')
${END_OPERATION}
return { 'aborted', record, detail }`,
  decode: textReply,
});

/**
 * Sets the remaining life of a hold. Replies ['extended' | 'finalized' | 'aborted' | 'expired', record,
 * detail], or ['not_found'].
 */
export const extendScript = defineScript({
  name: 'budget-extend',
  keys: BUDGET_KEYS,
  args: [...REF, 'ttlMs', 'retentionMs'],
  lua: `${START_SETTLING}
${READ_OPERATION}
local state, middle, rest = match(record, '^(%a)( %a %d+ %d+ %d+ %d+ %d+ %d+ %d %d+ )%d+( %d+ %S+)$')
if not state then foreign('not a budget record') end
if state == 'f' then return { 'finalized', record, detail } end
if state == 'a' then return { 'aborted', record, detail } end
if state == 'x' then return { 'expired', record, detail } end

local ending = redis.call('HGET', counters, '~')
local untilMs = nowMs + ttlMs + 2 * retentionMs
local expiresAtMs = format('%d', nowMs + ttlMs)
record = state .. middle .. expiresAtMs .. rest
${WRITE_ANYWAY}
${KEEP_KEYS}
redis.call('HSET', records, 'o|' .. id, record)
redis.call('ZADD', pending, expiresAtMs, id)
return { 'extended', record, detail }`,
  decode: textReply,
});

/**
 * Subtracts a refund from the committed amounts of an operation's windows. Replies ['refunded' | 'replayed',
 * record, fields, ends, limits, counters], ['exceeds_committed' | 'pending' | 'aborted' | 'expired', record,
 * detail], ['conflict'], or ['not_found'].
 */
export const refundScript = defineScript({
  name: 'budget-refund',
  keys: BUDGET_KEYS,
  args: [...REF, 'amount', 'refundId', 'retentionMs'],
  lua: `${START}${PLUS}
${READ_OPERATION}
local beginning, state, generationOf, committedOf, refundedOf, following =
  match(record, '^((%a) %a (%d+) %d+ %d+ (%d+)) (%d+)( %d+ %d %d+ %d+ %d+ %S+)$')
if not state then foreign('not a budget record') end
local content = amount .. ' ' .. generationOf .. ' ' .. id
local earlier = redis.call('HGET', records, 'r|' .. refundId)
if earlier and earlier ~= content then return { 'conflict' } end
if state == 'p' then return { 'pending', record, detail } end
if state == 'a' then return { 'aborted', record, detail } end
if state == 'x' then return { 'expired', record, detail } end
${OPEN_DETAIL}
${READ_COUNTERS}
if earlier then return { 'replayed', record, ${ENTRY_LISTS} } end
if less(minus(committedOf, refundedOf), amount) then return { 'exceeds_committed', record, detail } end

${ARM}
for i = 1, #limitOf do
  local committed, rest = match(packed[i], '^(%d+) (%d+ %d+ %d+ %S+)$')
  if not committed then foreign('not a budget counter') end
  packed[i] = minus(committed, amount) .. ' ' .. rest
end
record = beginning .. ' ' .. plus(refundedOf, amount) .. following
local untilMs = nowMs + 2 * retentionMs
redis.call('ZADD', garbage, nowMs + retentionMs, 'r|' .. refundId)
${KEEP_KEYS}
${WRITE_COUNTERS}
redis.call('HSET', records, slot, record, 'r|' .. refundId, content)
return { 'refunded', record, ${ENTRY_LISTS} }`,
  decode: textReply,
});

/**
 * Adds an amount to the limit of the open window. Replies ['credited' | 'replayed', fields, ends, limits,
 * counters], or ['conflict'].
 */
export const creditScript = defineScript({
  name: 'budget-credit',
  keys: BUDGET_KEYS,
  args: ['id', 'amount', 'period', 'retentionMs', ...ENTRIES],
  lua: `${START}${PLUS}
local content = amount .. ' ' .. scopes .. '|' .. period
local earlier = redis.call('HGET', records, 'k|' .. id)
if earlier and earlier ~= content then return { 'conflict' } end
${admit('limits', 'thresholds')}
local at
for i, field in ipairs(split(fields)) do
  if match(field, '^c|[^|]+|([^|]+)|') == period then at = i - 1 end
end
if not at then return { 'no_limit', scopes } end
fields, ends, limits, names = '~;' .. names[at], split(ends)[at], split(limits)[at], { names[at] }
limitOf, setOf, packed = { limitOf[at] }, setOf and { setOf[at] }, { packed[at] }
thresholds = thresholds ~= '-' and split(thresholds)[at] or '-'
if earlier then return { 'replayed', ${ENTRY_LISTS} } end
${ARM}
local used, credited, rest = match(packed[1], '^(%d+ %d+) (%d+) (%d+ %S+)$')
if not used then foreign('not a budget counter') end
packed[1] = used .. ' ' .. plus(credited, amount) .. ' ' .. rest
${ARM_CREDITED}
local untilMs = ends ~= '0' and tonumber(ends) + 2 * retentionMs or nil
redis.call('ZADD', garbage, nowMs + retentionMs, 'k|' .. id)
${KEEP_KEYS}
${WRITE_COUNTERS}
redis.call('HSET', records, 'k|' .. id, content)
return { 'credited', ${ENTRY_LISTS} }`,
  decode: textReply,
});

/**
 * Sets a limit that takes precedence over the configured one ('-' clears it). Replies ['set' | 'cleared' |
 * 'too_many'].
 */
export const setLimitScript = defineScript({
  name: 'budget-set-limit',
  keys: BUDGET_KEYS,
  args: ['scope', 'period', 'limit', 'retentionMs'],
  lua: `${START}
local MAX_PERIODS = 16
local field = 'l|' .. scope
local limits = {}
local text = redis.call('HGET', counters, field) or ''
for each, value in gmatch(text, '([^ =]+)=([^ =]+)') do limits[each] = value end
limits[period] = limit ~= '-' and limit or nil
local list = {}
for each, value in pairs(limits) do list[#list + 1] = each .. '=' .. value end
if #list > MAX_PERIODS then return { 'too_many' } end
table.sort(list)

if #list == 0 then
  redis.call('HDEL', counters, field)
else
  -- A limit of setLimit lasts until it is cleared, so the keys of the root never end.
  redis.call('HSET', counters, field, table.concat(list, ' '), '~', 'never l')
  for _, key in ipairs({ counters, records, pending, garbage }) do redis.call('PERSIST', key) end
end
return { limit == '-' and 'cleared' or 'set' }`,
  decode: textReply,
});

/** Reads the balances of a scope's open windows. Replies ['balance', fields, ends, limits, counters]. */
export const balanceScript = defineScript({
  name: 'budget-balance',
  keys: BUDGET_KEYS,
  args: ['retentionMs', ...ENTRIES],
  lua: `${START_SETTLING}
${admit()}
return { 'balance', ${ENTRY_LISTS} }`,
  decode: textReply,
});

/** Reads one operation and the server's time. Replies ['found', record, detail, now], or ['not_found']. */
export const getScript = defineScript({
  name: 'budget-get',
  keys: BUDGET_KEYS,
  args: REF,
  lua: `${READ_OPERATION}
local time = redis.call('TIME')
return { 'found', record, detail, string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)) }`,
  decode: textReply,
});

/**
 * Reads a page of operations. Replies ['page', next cursor, field, record, detail, field, record, detail...].
 */
export const listScript = defineScript({
  name: 'budget-list',
  keys: BUDGET_KEYS,
  args: ['cursor', 'limit', 'retentionMs'],
  lua: `${START_SETTLING}
local page = redis.call('HSCAN', records, cursor, 'MATCH', '[oO]|*', 'COUNT', 2 * limit)
local reply = { 'page', page[1] }
for i = 1, #page[2], 2 do
  local field = page[2][i]
  local detailOf = (string.sub(field, 1, 1) == 'o' and 'd' or 'D') .. string.sub(field, 2)
  reply[#reply + 1] = field
  reply[#reply + 1] = page[2][i + 1]
  reply[#reply + 1] = redis.call('HGET', records, detailOf) or ''
end
return reply`,
  decode: textReply,
});

/**
 * Settles expired holds, reports each once, and purges records past their retention. Replies ['reaped', how
 * many were purged, ms until there is more to do or -1, id of an expired hold...].
 */
export const reaperScript = defineScript({
  name: 'budget-reaper',
  keys: BUDGET_KEYS,
  args: ['max', 'retentionMs'],
  lua: `${START_REAPING}${PLUS}
local ripe = redis.call('ZRANGEBYSCORE', garbage, '-inf', now, 'LIMIT', 0, max)
local expired, fields, windows, kept, touched, purged = {}, {}, {}, {}, {}, 0
local isRipe, needed = {}, {}
for _, member in ipairs(ripe) do isRipe[member] = true end
for _, member in ipairs(ripe) do
  local kind, name = string.sub(member, 1, 2), string.sub(member, 3)
  if kind == 'n|' then
    expired[#expired + 1] = name
  elseif kind == 'N|' then
    expired[#expired + 1] = string.sub(name, string.find(name, '|', 1, true) + 1)
  elseif kind == 'c|' then
    local reserved = match(redis.call('HGET', counters, member) or '', '^%d+ (%d+) ')
    if needed[member] or (reserved and reserved ~= '0') then kept[member] = needed[member] or nowMs + retentionMs
    else windows[#windows + 1] = member end
  elseif kind == 'o|' or kind == 'O|' then
    local isNewest = kind == 'o|'
    local detailOf = (isNewest and 'd|' or 'D|') .. name
    local record, detail = unpack(redis.call('HMGET', records, member, detailOf))
    local olderUntilMs = false
    if record then
      ${openRecord('generationOf', 'committedOf', 'refundedOf')}
      -- The newest operation of an id is kept as long as any older one. Otherwise generations would start at 1
      -- again beside them.
      for older = isNewest and generationOf - 1 or 0, 1, -1 do
        local olderName = 'O|' .. format('%d', older) .. '|' .. name
        olderUntilMs = not isRipe[olderName] and redis.call('ZSCORE', garbage, olderName)
        if olderUntilMs then break end
      end
      -- The counters keep the committed sum of a purged operation, so that verify still adds up.
      local spent = olderUntilMs and '0' or minus(committedOf, refundedOf)
      for field in gmatch(spent ~= '0' and match(detail, '^%S+ %d+ (%S+)') or '', 'c|[^;]+') do
        local value = touched[field] or redis.call('HGET', counters, field)
        local before, archived, crossing = match(value or '', '^(%d+ %d+ %d+) (%d+) (%S+)$')
        if before then touched[field] = before .. ' ' .. plus(archived, spent) .. ' ' .. crossing end
      end
    end
    if olderUntilMs then
      kept[member] = olderUntilMs
      -- Its windows are kept a moment longer. They come after it in this list.
      for field in gmatch(match(detail, '^%S+ %d+ (%S+)') or '', 'c|[^;]+') do
        needed[field] = olderUntilMs + 1
      end
    else
      purged = purged + 1
      fields[#fields + 1] = member
      fields[#fields + 1] = detailOf
    end
  else
    purged = purged + 1
    fields[#fields + 1] = member
  end
end

for field, value in pairs(touched) do redis.call('HSET', counters, field, value) end
if #fields > 0 then redis.call('HDEL', records, unpack(fields)) end
if #windows > 0 then redis.call('HDEL', counters, unpack(windows)) end
if #ripe > 0 then redis.call('ZREM', garbage, unpack(ripe)) end
for member, untilMs in pairs(kept) do redis.call('ZADD', garbage, untilMs, member) end
for field, untilMs in pairs(needed) do redis.call('ZADD', garbage, 'XX', 'GT', untilMs, field) end

local nextInMs = -1
for _, key in ipairs({ pending, garbage }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[1] and first[1] ~= '' then
    local inMs = math.max(0, tonumber(first[2]) - nowMs)
    if nextInMs < 0 or inMs < nextInMs then nextInMs = inMs end
  end
end
return { 'reaped', format('%d', purged + #windows), format('%d', nextInMs), unpack(expired) }`,
  decode: textReply,
});

/**
 * Reads all of a root at one instant. Replies ['snapshot', number of parts, counter field, value..., number
 * of parts, record field, value..., number of ids, pending id...].
 */
export const snapshotScript = defineScript({
  name: 'budget-snapshot',
  keys: BUDGET_KEYS,
  args: ['retentionMs'],
  lua: `${START_SETTLING}
local reply = { 'snapshot' }
local function append(list)
  reply[#reply + 1] = format('%d', #list)
  for _, each in ipairs(list) do reply[#reply + 1] = each end
end
append(redis.call('HGETALL', counters))
append(redis.call('HGETALL', records))
append(redis.call('ZRANGE', pending, 0, -1))
return reply`,
  decode: textReply,
});

/** How long the registry is kept after its last change, in ms. This is as long as the longest hold. */
const REGISTRY_MS = 2_147_483_647;

/**
 * Updates the registry of roots. `watched` lists roots, `done` lists root=ms, both joined by ' '. Replies
 * [the time, adopted root...].
 */
export const rootsScript = defineScript({
  name: 'budget-roots',
  keys: ['registry'],
  args: ['watched', 'done', 'max', 'afterMs'],
  lua: `${NOW_MS}
local now = string.format('%d', nowMs)
for root in string.gmatch(watched, '%S+') do redis.call('ZADD', registry, now, root) end
for root, ms in string.gmatch(done, '(%S+)=(%d+)') do
  if tonumber(redis.call('ZSCORE', registry, root) or 0) == tonumber(ms) then redis.call('ZREM', registry, root) end
end
local orphaned = string.format('%d', nowMs - afterMs)
local adopted = redis.call('ZRANGEBYSCORE', registry, '-inf', orphaned, 'LIMIT', 0, max)
for _, root in ipairs(adopted) do redis.call('ZADD', registry, now, root) end
redis.call('PEXPIRE', registry, ${REGISTRY_MS})
return { now, unpack(adopted) }`,
  decode: textReply,
});

export const budgetScripts: readonly Script[] = [
  reserveScript,
  chargeScript,
  finalizeScript,
  abortScript,
  extendScript,
  refundScript,
  creditScript,
  setLimitScript,
  balanceScript,
  getScript,
  listScript,
  reaperScript,
  snapshotScript,
  rootsScript,
];
