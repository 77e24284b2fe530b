import { ARM, CROSS } from './budget.thresholds.fragments.js';
import { effective, READ_BALANCES, TRY_ZREM, unreadable } from './budget.fragments.js';
import { LIFETIME_IDS_MS, MAX_AMOUNT } from '../budget.bounds.js';
import type { Entries } from './budget.entries.js';
import { textReply, type TextReply } from './budget.replies.js';
import { defineScript, type Script, type ScriptDefinition } from '../../script/define-script.js';
import { takeApart } from '../../script/fragments.js';

/**
 * Sets when the four keys end. They end together, and only if every period ends: `untilMs` is nil if one does
 * not. The end is set an hour late, so that it rarely has to move. A member that no operation removes keeps
 * each key alive until then. The first write goes to `garbage`, the only key that may not have been
 * read, so that a wrong type fails before anything is written.
 *
 * Each kind of command comes once where it leaves nothing, before the writes that belong together: a ZADD that adds nothing,
 * an end for a key that is there anyway, the end that is noted already.
 */
export const KEEP_KEYS = /* lua */ `
-- Reads: ending, untilMs, garbage, counters, records, pending.
if ending ~= 'never' and ending ~= 'never l' and (not ending or not untilMs or untilMs > tonumber(ending)) then
  local SLACK_MS = 3600000
  local keys = { garbage, counters, records, pending }
  if untilMs then
    local endMs = untilMs + SLACK_MS
    redis.call('ZADD', garbage, 'XX', '+inf', '')
    redis.call('PEXPIREAT', garbage, endMs)
    redis.call('HSET', counters, '~', endMs)
    redis.call('HSET', records, '~', '')
    redis.call('ZADD', garbage, '+inf', '')
    redis.call('ZADD', pending, '+inf', '')
    for _, key in ipairs(keys) do redis.call('PEXPIREAT', key, endMs) end
  else
    redis.call('HSET', counters, '~', ending or 'never')
    if ending then
      for _, key in ipairs(keys) do redis.call('PERSIST', key) end
      redis.call('HSET', counters, '~', 'never')
    end
  end
end`;

/**
 * Writes the counters in `packed`, and keeps the keys as long as they need. A window that opens, or that is past, is
 * scheduled for purging after its retention. `ends` are the writes by which what the script adds comes to its end. Like the
 * schedule they do no harm alone. The counters and the records follow, all by HSET: an ACL refuses both or none.
 */
export const writeCounters = (ends: string): string => /* lua */ `
-- Reads: ending, untilMs, records, pending, isNew, openUntilMs, nowMs, split, ends, garbage, retentionMs, names,
--   packed, counters.
-- Sets: writes.
${KEEP_KEYS}
if isNew or not (openUntilMs == '0' or nowMs < tonumber(openUntilMs)) then
  for i, stop in ipairs(split(ends)) do
    if stop ~= '0' then
      redis.call('ZADD', garbage, 'GT', math.max(tonumber(stop), nowMs) + retentionMs + 1, names[i])
    end
  end
end
${ends}
local writes = {}
for i = 1, #names do
  writes[2 * i - 1] = names[i]
  writes[2 * i] = packed[i]
end
redis.call('HSET', counters, unpack(writes))`;

/** The keys of a root, which every script declares, and the key of an id, for the scripts that have one. */
const KEYS = ['counters', 'records', 'pending', 'garbage'] as const;

export type BudgetKey = (typeof KEYS)[number] | 'idKey' | 'refundKey';

export type BudgetScript<Arg extends string> = Script<BudgetKey, Arg, TextReply>;

interface BudgetDefinition<Arg extends string> extends Pick<
  ScriptDefinition<BudgetKey, Arg, TextReply>,
  'name' | 'args' | 'lua'
> {
  readonly ids?: readonly ('idKey' | 'refundKey')[];
}

/** Defines a script over the keys of a root, and of the ids in `ids`. */
export const defineBudgetScript = <const Arg extends string>(
  script: BudgetDefinition<Arg>,
): BudgetScript<Arg> =>
  defineScript(Object.assign(script, { keys: [...KEYS, ...(script.ids ?? [])], decode: textReply }));

/** The arguments with the entries of an operation. */
export const ENTRIES = [
  'fields',
  'limits',
  'thresholds',
  'ends',
  'inherited',
  'openFromMs',
  'openUntilMs',
  'lastEndMs',
] as const satisfies (keyof Entries)[];

/** Lua that joins texts by spaces. It makes one text, which `table.concat` does by a table more. */
export const joined = (...texts: string[]): string => texts.join(` .. ' ' ..\n  `);

export const DETAIL = joined(
  ...['nonce', 'openUntilMs', 'fields', 'limits', 'thresholds', 'ends'],
  'inherited',
  'meta',
);

/**
 * What is kept of a finalized operation: its `head`, which is the record up to its dates, when it ended, and where it counts.
 * It is a key of its own, so that Redis forgets it by itself, and so that a root does not grow with what is spent.
 */
const KEPT = "'^(1 f %a %d+ %d+ %d+ %d+ %d+ %d+ %d) (%d+) (%S+) (%S+) (%S+) (%S+)$'";

/** Raises `keepMs` to the time for which the windows of an operation are of interest: with their retention, or 400 days. */
const WINDOWS_END = /* lua */ `for stop in gmatch(ends, '%d+') do
  local forMs = stop == '0' and ${LIFETIME_IDS_MS} or stop - nowMs + retentionMs
  if forMs > keepMs then keepMs = forMs end
end`;

/** Sets how long what belongs to an operation is kept. */
export const KEEP_MS = /* lua */ `
-- Reads: ends, gmatch, nowMs, retentionMs.
-- Sets: keepMs.
local keepMs = retentionMs + 0
${WINDOWS_END}`;

/**
 * A SET that sets nothing, as nothing is kept yet. An ACL that forbids SET refuses a charge, credit or refund here, and not
 * after it was counted.
 */
export const tryKeep = (key: 'idKey' | 'refundKey'): string => `redis.call('SET', ${key}, '', 'XX')`;

/** Keeps a finalized operation for `keepMs`. */
export const KEEP = /* lua */ `redis.call('SET', idKey,
  ${joined('head', 'endedAtMs', 'fields', 'limits', 'inherited', 'ends')}, 'PX', format('%d', keepMs))`;

/** Keeps an operation that is finalized now for `idTtlMs`, but not beyond its last window. */
export const KEEP_NEW = /* lua */ `
-- Reads: idTtlMs, now, find, ends, nowMs, openUntilMs, gmatch, retentionMs, idKey, head, fields, limits, inherited,
--   format.
-- Sets: keepMs, endedAtMs, hasLifetime.
local keepMs, endedAtMs = tonumber(idTtlMs), now
local hasLifetime = find(';' .. ends, ';0', 1, true)
if not hasLifetime and nowMs + keepMs > tonumber(openUntilMs) then
  keepMs = 0
  ${WINDOWS_END}
  keepMs = math.min(keepMs, idTtlMs)
end
keepMs = math.max(keepMs, retentionMs)
${KEEP}`;

/** Makes a record and its fixed part of what was kept. What cannot be read fails where the record is opened. */
const OPEN_KEPT = /* lua */ `
  record, detail = kept, ''
  local head, endedAtMs, keptFields, keptLimits, keptInherited, keptEnds =
    string.match(kept, ${KEPT})
  if head then
    record = ${joined('head', 'endedAtMs', 'endedAtMs', 'endedAtMs', "'-'")}
    detail = ${joined("'- 0'", 'keptFields', 'keptLimits', "'-'", 'keptEnds', 'keptInherited', "''")}
  end`;

/**
 * Reads the newest operation of an id, or what is kept of it: `kept` is read before the first write, as the key may be of
 * another type. A repeated call is answered with its record and its current balances.
 */
export const READ_NEWEST = /* lua */ `
-- Reads: records, id, kept.
-- Sets: record, detail.
local record, detail = redis.call('HGET', records, 'o|' .. id), nil
if record then
  detail = redis.call('HGET', records, 'd|' .. id)
elseif kept then${OPEN_KEPT}
end`;

/** The arguments that refer to a hold. */
export const REF = ['id', 'generation', 'nonce'] as const;

/**
 * Finds the hold of a generation (0: the newest). Generations start at 1 again once an id was purged, so a
 * hold with another nonce is not found ('-' accepts any). What was kept has no nonce.
 */
export const READ_OPERATION = /* lua */ `
-- Reads: id, records, idKey, generation, nonce.
-- Sets: slot, record, detail, kept.
local slot = 'o|' .. id
local record, detail = unpack(redis.call('HMGET', records, slot, 'd|' .. id))
local kept = not record and redis.call('GET', idKey)
if kept then${OPEN_KEPT}
end
if record and generation ~= '0' and generation ~= (string.match(record, '^1 %a %a (%d+)') or generation) then
  slot, kept = 'O|' .. generation .. '|' .. id, nil
  record, detail = unpack(redis.call('HMGET', records, slot, 'D|' .. generation .. '|' .. id))
end
if not record or not detail then return { 'not_found' } end
if nonce ~= '-' and not kept and string.sub(detail, 1, #nonce + 1) ~= nonce .. ' ' then return { 'not_found' } end`;

const DETAIL_FIELDS = {
  nonce: '%S+',
  openUntilMs: '%d+',
  fields: '%S+',
  limits: '%S+',
  thresholds: '%S+',
  ends: '%S+',
  inherited: '%S+',
  meta: '.*',
};

/** Sets the entries in which an operation has counted. */
export const OPEN_DETAIL = /* lua */ `
-- Reads: record, detail, isNewer.
-- Sets: openUntilMs, fields, limits, thresholds, ends, inherited.
local ${takeApart('detail', DETAIL_FIELDS, ['openUntilMs', 'fields', 'limits', 'thresholds', 'ends', 'inherited'])}
if not fields then ${unreadable('record')} end`;

export const ENTRY_LISTS = "fields, ends,\n  table.concat(limitOf, ';'), table.concat(packed, ';')";

/** Answers a repeated call with the entries of the first one, in place of those of its arguments. */
export const REPLAY = /* lua */ `
-- Reads: detail, isNewer, split, sub, counters, EMPTY, gmatch, match, record.
-- Changes: fields, limits, ends, inherited.
-- Sets: names, packed, ending, limitOf.
    ${takeApart('detail', DETAIL_FIELDS, ['fields', 'limits', 'ends', 'inherited'])}
    if not fields then ${unreadable('record')} end
    ${READ_BALANCES}
    return { 'replayed', record, ${ENTRY_LISTS}, match(detail, '^%S+') }`;

// Scopes are compared as sets, since a retry may list them in another order.
export const sameContent = (ofKind: string): string => /* lua */ `
  local function scopesIn(list)
    local names = {}
    for name in gmatch(list, ';c|([^|]+)') do
      if names[#names] ~= name then names[#names + 1] = name end
    end
    table.sort(names)
    return table.concat(names, ',')
  end
  local fieldsBefore = match(detail, '^%S+ %d+ (%S+) %S+ %S+ %S+ %S+ ')
  if not fieldsBefore then ${unreadable('record')} end
  local isSame = kind == '${ofKind}' and amountOf == amount and scopesIn(fieldsBefore) == scopesIn(fields)`;

/**
 * Adds the amount to a part of each counter, and finds the thresholds that this crosses. Ends before anything is written:
 * with 'exceeded' if a counter has no room for the amount, where 0 needs none, and with 'too_large' if a sum would pass the
 * largest amount. If `mode` is 'record', the sum of a charge stops at the largest amount instead.
 */
export const addAmount = (part: 'committed' | 'reserved'): string => /* lua */ `
-- Reads: ending, thresholds, format, gmatch, limits, setOf, limitOf, match, isNewer, amount, split, ends, names, now.
-- Changes: packed.
-- Sets: crossed${part === 'committed' ? ', isAtMax' : ''}.
${ARM}
local full, stops${part === 'committed' ? ', isAtMax' : ''}
for i, limit in ipairs(limitOf) do
  local committed, reserved, credits, rest = match(packed[i], '^1 (%d+) (%d+) (%d+)( %d+ %S+)$')
  if not committed then ${unreadable('packed[i]')} end
  if mode ~= 'record' then
    -- Beyond the largest amount it may be rounded, but it stays beyond every limit.
    local sum = committed + reserved + amount
    if limit ~= 'u' and amount ~= '0' and sum > ${effective('limit', 'credits')} then
      full, stops = full or { {}, {}, {}, {} }, stops or split(ends)
      local n = #full[1] + 1
      full[1][n], full[2][n], full[3][n], full[4][n] = names[i], stops[i], limit, packed[i]
    elseif sum > ${MAX_AMOUNT} then
      return { 'too_large' }
    end
  end
  ${part} = ${part} + amount
  ${part === 'committed' ? `if committed > ${MAX_AMOUNT} then committed, isAtMax = ${MAX_AMOUNT}, true end` : ''}
  ${part} = format('%.0f', ${part})
  packed[i] = '1 ' .. committed .. ' ' .. reserved .. ' ' .. credits .. rest
end
if full then
  for i = 1, 4 do full[i] = table.concat(full[i], ';') end
  return { 'exceeded', amount, now, unpack(full) }
end
local crossed = '-'
${CROSS}`;

/**
 * Ends an operation. Expects its new counters in `packed` and its new record in `record`. `keep` keeps its id. That comes
 * before the counters: as long as they are refused, the record of a pending hold counts and not what is kept.
 */
export const endOperation = (keep = ''): string => /* lua */ `
-- Reads: nowMs, retentionMs, garbage, slot, ending, counters, records, pending, isNew, openUntilMs, split,
--   ends, names, packed, record, id.
-- Sets: untilMs, writes.
local untilMs = nowMs + 2 * retentionMs
${TRY_ZREM}
${keep}
${writeCounters("redis.call('ZADD', garbage, format('%d', nowMs + retentionMs), slot)")}
redis.call('HSET', records, slot, record)
if slot == 'o|' .. id then redis.call('ZREM', pending, id) end`;
