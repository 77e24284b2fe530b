import { changeCounters, effective, openRecord, READ_BALANCES, TRY_ZREM } from './budget.fragments.js';
import { LIFETIME_IDS_MS, MAX_AMOUNT } from '../budget.results.js';
import type { Entries } from './budget.entries.js';
import { joined, type RecordPart } from './budget.record.js';
import { textReply, type TextReply } from './budget.replies.js';
import { defineScript, type Script, type ScriptDefinition } from '../../script/define-script.js';

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
-- Reads: call, ending, untilMs, garbage, counters, records, pending.
if ending ~= 'never' and ending ~= 'never l' and (not ending or not untilMs or untilMs - ending > 0) then
  local SLACK_MS = 3600000
  local keys = { garbage, counters, records, pending }
  if untilMs then
    local endMs = untilMs + SLACK_MS
    call('ZADD', garbage, 'XX', '+inf', '')
    call('PEXPIREAT', garbage, endMs)
    call('HSET', counters, '~', endMs)
    call('HSET', records, '~', '')
    call('ZADD', garbage, '+inf', '')
    call('ZADD', pending, '+inf', '')
    for _, key in ipairs(keys) do call('PEXPIREAT', key, endMs) end
  else
    call('HSET', counters, '~', ending or 'never')
    if ending then
      for _, key in ipairs(keys) do call('PERSIST', key) end
      call('HSET', counters, '~', 'never')
    end
  end
end`;

/**
 * Writes the counters in `packed`, and keeps the keys as long as they need. A window that opens, or that is past, is
 * scheduled for purging after its retention. `ends` are the writes by which what the script adds comes to its end. Like the
 * schedule they do no harm alone. The counters and the records follow, all by HSET: an ACL refuses both or none.
 */
export const writeCounters = (ends: string): string => /* lua */ `
-- Reads: call, ending, untilMs, records, pending, openUntilMs, nowMs, split, ends, garbage, retentionMs, names, found,
--   packed, counters.
-- Sets: writes, mayEnd.
${KEEP_KEYS}
local writes, mayEnd = {}, openUntilMs ~= '0' and nowMs - openUntilMs >= 0
for i = 1, #names do
  writes[2 * i - 1] = names[i]
  writes[2 * i] = packed[i]
  mayEnd = mayEnd or not found[i + 1]
end
if mayEnd then
  for i, stop in ipairs(split(ends)) do
    if stop ~= '0' then
      call('ZADD', garbage, 'GT', math.max(stop, nowMs) + retentionMs + 1, names[i])
    end
  end
end
${ends}
call('HSET', counters, unpack(writes))`;

/** The keys of a root, which every script declares, and the key of an id, for the scripts that have one. */
const KEYS = ['counters', 'records', 'pending', 'garbage'] as const;

export type BudgetKey = (typeof KEYS)[number] | 'idKey' | 'refundKey';

export type BudgetScript<Arg extends string> = Script<BudgetKey, Arg, TextReply>;

/** Defines a script over the keys of a root, and of the ids in `ids`. */
export const defineBudgetScript = <const Arg extends string>({
  ids = [],
  ...script
}: Pick<ScriptDefinition<BudgetKey, Arg, TextReply>, 'name' | 'args' | 'lua'> & {
  readonly ids?: readonly ('idKey' | 'refundKey')[];
}): BudgetScript<Arg> => defineScript(Object.assign(script, { keys: [...KEYS, ...ids], decode: textReply }));

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

/** The fixed part of the record of an operation that begins now. */
export const FIXED_NOW = joined(
  ...['nonce', 'openUntilMs', 'fields', 'limits', 'thresholds', 'ends'],
  'inherited',
  'meta',
);

/**
 * What is kept of a finalized operation: its `head`, which is its record from its kind up to its dates, when it ended, and
 * where it counts. It is a key of its own, so that Redis forgets it by itself, and so that a root does not grow with what is
 * spent.
 */
const KEPT = "'^1 (%a %d+ %d+ %d+ %d+ %d+ %d+ %d) (%d+) (c|%S+ %S+) (%S+ %S+)$'";

/**
 * For how long what belongs to an operation is kept: while its windows are of interest, with their retention, or for 400
 * days. An operation is not kept for longer than `idTtlMs`, once that is longer than its record is.
 */
export const keepMs = (idTtlMs = 'math.huge'): string =>
  `math.max(retentionMs,
  math.min(${idTtlMs}, lastEndMs == '0' and ${LIFETIME_IDS_MS} or lastEndMs - nowMs + retentionMs))`;

/** Finds the end of the last window. '0': one never ends. */
export const LAST_END = /* lua */ `
-- Reads: find, ends, split.
-- Sets: lastEndMs.
local lastEndMs = find(';' .. ends, ';0', 1, true) and '0' or math.max(unpack(split(ends)))`;

/**
 * A SET that sets nothing, as nothing is kept yet. An ACL that forbids SET refuses a credit or refund here, and not after it
 * was counted.
 */
export const tryKeep = (key: 'idKey' | 'refundKey'): string => `call('SET', ${key}, '', 'XX')`;

/** The arguments that keep a finalized operation. */
export const keep = (endedAtMs: string, idTtlMs?: string): string => /* lua */ `'SET', idKey,
  ${joined("'1'", 'head', endedAtMs, 'fields', 'limits', 'ends', 'inherited')}, 'PX', format('%d', ${keepMs(idTtlMs)})`;

/** Makes a record of what was kept. What cannot be read fails where the record is opened. */
const OPEN_KEPT = /* lua */ `
  local keptHead, keptAtMs, lists, windows =
    string.match(kept, ${KEPT})
  record = keptHead and ${joined("'1 f'", 'keptHead', 'keptAtMs', 'keptAtMs', 'keptAtMs', "'- - 0'", 'lists', "'-'", 'windows')} .. ' '
    or kept`;

/**
 * Reads the newest operation of an id, or what is kept of it: `kept` is read before the first write, as the key may be of
 * another type.
 */
export const READ_NEWEST = /* lua */ `
-- Reads: call, records, id, kept.
-- Sets: record.
local record = call('HGET', records, 'o|' .. id)
if not record and kept then${OPEN_KEPT}
end`;

/** The arguments that refer to a hold. */
export const REF = ['id', 'generation', 'nonce'] as const;

/** Finds the hold of a generation (0: the newest). */
export const FIND_OPERATION = /* lua */ `
-- Reads: call, id, records, idKey, generation.
-- Sets: slot, record, kept.
local slot = 'o|' .. id
local record = call('HGET', records, slot)
local kept = not record and call('GET', idKey)
if kept then${OPEN_KEPT}
end
if record and generation ~= '0' and generation ~= (string.match(record, '^1 %a %a (%d+)') or generation) then
  slot, kept = 'O|' .. generation .. '|' .. id, nil
  record = call('HGET', records, slot)
end
if not record then return { 'not_found' } end`;

/**
 * Ends the script where the hold that was found has another nonce than the call, as generations start at 1 again once an id
 * was purged. '-' accepts any, and what was kept has none.
 */
export const REFUSE_FOREIGN = /* lua */ `
-- Reads: nonce, nonceOf, kept.
if nonce ~= '-' and not kept and nonceOf ~= nonce then return { 'not_found' } end`;

/** Finds a hold, and sets locals to parts of its record: to those that it keeps, and to others. */
export const readOperation = (...others: RecordPart[]): string => {
  const kept = ['state', 'kind', 'generationOf', 'amountOf', 'createdAtMs', 'fixed', 'nonceOf'] as const;
  return `${FIND_OPERATION}${openRecord(...kept, ...others)}${REFUSE_FOREIGN}`;
};

/** The parts of a record for {@link OPEN_ENTRIES}. */
export const ENTRY_PARTS = ['openUntilOf', 'fieldsOf', 'limitsOf', 'endsOf', 'inheritedOf'] as const;

/** Reads the balances of what an operation has counted in. */
export const OPEN_ENTRIES = /* lua */ `
-- Reads: call, openUntilOf, fieldsOf, limitsOf, endsOf, inheritedOf, split, counters, EMPTY, match, find.
-- Sets: openUntilMs, fields, limits, ends, inherited, names, found, packed, ending, inForce.
local openUntilMs, fields, limits, ends, inherited = openUntilOf, fieldsOf, limitsOf, endsOf, inheritedOf
${READ_BALANCES}`;

/** What a reply says of the counters of a record. */
export const SUMS = "inForce, packed[2] and table.concat(packed, ';') or packed[1]";

/** What a reply without a record says of its entries. */
export const ENTRY_LISTS = `fields, ends, ${SUMS}`;

/**
 * Sets \`isSame\`: whether an operation of this kind has this amount and these scopes. They are compared as sets, since a retry
 * may list them in another order.
 */
export const sameContent = (ofKind: string): string => /* lua */ `
-- Reads: gmatch, kind, amountOf, amount, fieldsOf, fields.
-- Sets: isSame, scopesIn.
  local function scopesIn(list)
    local scopes = {}
    for scope in gmatch(';' .. list, ';c|([^|]+)') do
      if scopes[#scopes] ~= scope then scopes[#scopes + 1] = scope end
    end
    table.sort(scopes)
    return table.concat(scopes, ',')
  end
  local isSame = kind == '${ofKind}' and amountOf == amount and scopesIn(fieldsOf) == scopesIn(fields)`;

/**
 * Finds the thresholds that a step reaches which has added this much. Stores them in `crossed`, as one list for each entry
 * joined by ';', and the highest one in the counter: with the limit and the credits that it was checked against, where these
 * are not those of the options. A raised limit and a credit arm the thresholds again that were not reached before the step.
 */
export const findCrossed = (added: string): string => /* lua */ `
-- Reads: thresholds, split, inForce, limits, match, gmatch.
-- Changes: packed, crossed.
if thresholds ~= '-' then
  local function wholeOf(limit, credits)
    return limit == 'u' and math.huge or ${effective('limit', 'credits')}
  end
  -- Each product is exact where it decides.
  local function reaches(used, percent, whole)
    local hundreds = math.floor(whole / 100)
    return whole > 0 and whole < math.huge
      and used >= percent * hundreds + math.ceil(percent * (whole - 100 * hundreds) / 100)
  end
  local lists, current, configured = {}, split(inForce), split(limits)
  for i, percents in ipairs(split(thresholds)) do
    lists[i] = '-'
    if percents ~= '-' then
      local sums, committed, reserved, credits, highest, seenLimit, seenCredits =
        match(packed[i], '^(1 (%d+) (%d+) (%d+) %d+) (%d+)=?(%w*)%+?(%d*)$')
      local used, whole = committed + reserved, wholeOf(current[i], credits)
      if seenLimit == '' then seenLimit = configured[i] end
      local isRaised = whole > wholeOf(seenLimit, tonumber(seenCredits) or 0)
      local reached, last = {}, isRaised and 0 or highest
      for percent in gmatch(percents, '%d+') do
        local isOld = tonumber(percent) <= tonumber(highest)
          and (not isRaised or reaches(used - ${added}, percent, whole))
        if isOld or reaches(used, percent, whole) then last = math.max(last, percent) end
        if not isOld and reaches(used, percent, whole) then reached[#reached + 1] = percent end
      end
      if #reached > 0 then lists[i] = table.concat(reached, ',') end
      local set = current[i] ~= configured[i] and current[i] or ''
      packed[i] = sums .. ' ' .. last .. (set .. credits ~= '0' and '=' .. set .. '+' .. credits or '')
    end
  end
  crossed = table.concat(lists, ';')
end`;

/**
 * Adds the amount to a part of each counter, and finds the thresholds that this crosses. Ends before anything is written:
 * with 'exceeded' if a counter has no room for the amount, where 0 needs none, and with 'too_large' if a sum would pass the
 * largest amount. If `mode` is 'record', the sum of a charge stops at the largest amount instead.
 */
export const addAmount = (part: 'committed' | 'reserved'): string => /* lua */ `
-- Reads: thresholds, format, gmatch, limits, inForce, match, amount, mode, split, ends, names, found, EMPTY, now.
-- Changes: packed.
-- Sets: limitOf, wanted, crossed${part === 'committed' ? ', isAtMax' : ''}.
local limitOf, wanted = split(inForce), tonumber(amount)
local isFull${part === 'committed' ? ', isAtMax' : ''}
${changeCounters(`local limit, sum = limitOf[i], ${part} + wanted
  if mode ~= 'record' then
    -- A sum of two is exact where it decides, and one of three may not be. Most counters have no credits.
    local whole = limit == 'u' and ${MAX_AMOUNT} or credits == '0' and limit
      or ${effective('limit', 'credits')}
    if wanted > 0 and sum > whole - ${part === 'committed' ? 'reserved' : 'committed'} then
      if limit == 'u' then return { 'too_large' } end
      isFull = true
    end
  end
  ${part === 'committed' ? `if sum > ${MAX_AMOUNT} then sum, isAtMax = ${MAX_AMOUNT}, true end` : ''}
  ${part} = format('%d', sum)`)}
if isFull then
  for i = 1, #names do packed[i] = found[i + 1] or EMPTY end
  return { 'exceeded', amount, now, ${ENTRY_LISTS} }
end
local crossed = '-'
${findCrossed('amount')}`;

/**
 * Ends an operation. Expects its new counters in `packed` and its new record in `record`. `keep` keeps its id. That comes
 * before the counters: as long as they are refused, the record of a pending hold counts and not what is kept.
 */
export const endOperation = (keep = ''): string => /* lua */ `
-- Reads: call, nowMs, retentionMs, garbage, slot, ending, counters, records, pending, found, openUntilMs, split,
--   ends, names, packed, record, id.
-- Sets: untilMs, writes, mayEnd.
local untilMs = nowMs + 2 * retentionMs
${TRY_ZREM}
${keep}
${writeCounters("call('ZADD', garbage, format('%d', nowMs + retentionMs), slot)")}
call('HSET', records, slot, record)
if slot == 'o|' .. id then call('ZREM', pending, id) end`;
