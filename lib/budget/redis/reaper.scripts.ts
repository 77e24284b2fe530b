import { MAX_AMOUNT } from '../budget.results.js';
import { isNewer, SET_ASIDE, START_SETTLING } from './budget.fragments.js';
import { defineBudgetScript } from './budget.operation.fragments.js';
import { readRecord } from './budget.record.js';
import { textReply } from './budget.replies.js';
import { defineScript } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

/**
 * budget-reaper: Settles expired holds, reports each once, and purges records past their retention.
 * KEYS: counters, records, pending, garbage
 * ARGV: max, retentionMs
 * Reply: ['reaped', how many were purged, ms until there is more to do or -1, how many holds expired, id of an expired
 *   hold..., field of a record that was set aside and what it had reserved (or '')...]
 * Atomic: an expired hold is reported by one of many reapers, and a purged record leaves its sum behind.
 */
export const reaperScript = defineBudgetScript({
  name: 'budget-reaper',
  args: ['max', 'retentionMs'],
  lua: /* lua */ `${START_SETTLING}
local ripe = call('ZRANGEBYSCORE', garbage, '-inf', now, 'LIMIT', 0, max)
local expired, unread, fields, windows, kept, touched = {}, {}, {}, {}, {}, {}
local aside, done, isRipe, needed = {}, {}, {}, {}
for _, member in ipairs(ripe) do isRipe[member] = true end
for _, member in ipairs(ripe) do
  local kind, name = string.sub(member, 1, 2), string.sub(member, 3)
  if kind == 'q|' then
    unread[#unread + 1] = name
    unread[#unread + 1] = match(call('HGET', records, member) or '', '^1 p %a %d+ (%d+) ') or ''
  elseif kind == 'n|' or kind == 'N|' then
    expired[#expired + 1] = kind == 'n|' and name or match(name, '|(.*)')
  elseif kind == 'c|' then
    local packed = call('HGET', counters, member)
    local reserved = match(packed or '', '^1 %d+ (%d+) ')
    if ${isNewer('packed')} then kept[member] = nowMs + LATER_MS
    elseif needed[member] or (reserved and reserved ~= '0') then kept[member] = needed[member] or nowMs + retentionMs
    else windows[#windows + 1] = member end
  elseif kind == 'o|' or kind == 'O|' then
    local isNewest = kind == 'o|'
    local record = call('HGET', records, member)
    local olderUntilMs = false
    ${readRecord('state', 'generationOf', 'committedOf', 'refundedOf', 'fieldsOf')}
    local isLater, isAside = ${isNewer('record')}, record and not state
    for field in gmatch(fieldsOf or '', '[^;]+') do
      local packed = touched[field] or call('HGET', counters, field)
      isLater = isLater or ${isNewer('packed')}
    end
    if record and not isLater and not isAside then
      -- The newest operation of an id is kept as long as any older one. Otherwise generations would start at 1
      -- again beside them.
      for older = isNewest and generationOf - 1 or 0, 1, -1 do
        local olderName = 'O|' .. format('%d', older) .. '|' .. name
        olderUntilMs = not isRipe[olderName] and call('ZSCORE', garbage, olderName)
        if olderUntilMs then break end
      end
      -- The counters keep the committed sum of a purged operation, so that verify still adds up.
      local spent = olderUntilMs and 0 or committedOf - refundedOf
      for field in gmatch(spent ~= 0 and fieldsOf or '', '[^;]+') do
        local value = touched[field] or call('HGET', counters, field)
        local before, archived, crossing = match(value or '', '^(1 %d+ %d+ %d+) (%d+) (%S+)$')
        if before then
          touched[field] = before .. format(' %d ', math.min(archived + spent, ${MAX_AMOUNT})) .. crossing
        end
      end
    end
    if isLater then
      kept[member] = nowMs + LATER_MS
    elseif isAside then
      aside[member] = record
    elseif olderUntilMs then
      kept[member] = olderUntilMs
      -- Its windows are kept a moment longer. They come after it in this list.
      for field in gmatch(fieldsOf, '[^;]+') do
        needed[field] = olderUntilMs + 1
      end
    -- The end of a hold was refused after its purge had been planned. The next one plans it anew.
    elseif state ~= 'p' then
      fields[#fields + 1] = member
    end
  end
  if not kept[member] then done[#done + 1] = member end
end

-- What an ACL refuses before the records go leaves them as they are. What it refuses later is purged by the next run.
-- The HDEL of nothing also has a full server allow the writes after it.
call('HDEL', records, '-')
for member, untilMs in pairs(kept) do call('ZADD', garbage, untilMs, member) end
for field, untilMs in pairs(needed) do call('ZADD', garbage, 'XX', 'GT', untilMs, field) end
for field, value in pairs(touched) do call('HSET', counters, field, value) end
if #fields > 0 then call('HDEL', records, unpack(fields)) end
if #windows > 0 then call('HDEL', counters, unpack(windows)) end
${SET_ASIDE}
if #done > 0 then call('ZREM', garbage, unpack(done)) end

local nextInMs = -1
for _, key in ipairs({ pending, garbage }) do
  local first = call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[1] and first[1] ~= '' then
    local inMs = math.max(0, tonumber(first[2]) - nowMs)
    if nextInMs < 0 or inMs < nextInMs then nextInMs = inMs end
  end
end
local reply = { 'reaped', format('%d', #fields + #windows), format('%d', nextInMs), format('%d', #expired) }
for _, list in ipairs({ expired, unread }) do
  for _, each in ipairs(list) do reply[#reply + 1] = each end
end
return reply`,
});

/** How long the registry is kept after its last change, in ms. This is as long as the longest hold. */
const REGISTRY_MS = 2_147_483_647;

/** A root that was taken and not reported is due again after so many rounds. */
const TAKEN_ROUNDS = 3;

/**
 * budget-roots: Notes which roots are used and which were reaped, and takes those that are due.
 * KEYS: registry
 * ARGV: used (roots), reaped (root=until=ms to the next time, or none), both joined by ' ', max, everyMs
 * Reply: [until, taken root...]
 * Atomic: a root that is due is taken by one process.
 */
export const rootsScript = defineScript({
  name: 'budget-roots',
  keys: ['registry'],
  args: ['used', 'reaped', 'max', 'everyMs'],
  lua: /* lua */ `${NOW_MS}
local function at(ms) return string.format('%d', ms) end
-- The end comes first, where the registry is there. A ZADD that adds nothing has a full server refuse a new one.
redis.call('ZADD', registry, 'XX', at(nowMs), '')
local ends = redis.call('PEXPIRE', registry, ${REGISTRY_MS})
for root in string.gmatch(used, '%S+') do redis.call('ZADD', registry, 'LT', at(nowMs + everyMs), root) end
if ends == 0 then redis.call('PEXPIRE', registry, ${REGISTRY_MS}) end
for root, taken, inMs in string.gmatch(reaped, '(%S+)=(%d+)=(%d*)') do
  -- Where it was used meanwhile, it is due sooner. A late report tells nothing, as a use then changes nothing.
  local isSame = tonumber(redis.call('ZSCORE', registry, root) or 0) == tonumber(taken)
  if isSame and nowMs + everyMs < tonumber(taken) then
    if inMs == '' then redis.call('ZREM', registry, root)
    else redis.call('ZADD', registry, at(nowMs + math.max(inMs, everyMs)), root) end
  end
end
local due = redis.call('ZRANGEBYSCORE', registry, '-inf', at(nowMs), 'LIMIT', 0, max)
local untilMs = at(nowMs + ${TAKEN_ROUNDS} * everyMs)
for _, root in ipairs(due) do redis.call('ZADD', registry, untilMs, root) end
return { untilMs, unpack(due) }`,
  decode: textReply,
});
