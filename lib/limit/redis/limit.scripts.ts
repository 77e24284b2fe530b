import { ALL_PENALTIES, BEGAN, formatPenalties, parsePenalties, ROUTE_AT } from './limit.fragments.js';
import { BLOCK_END, parseWindow, writeBlock, writeWindow } from './window.decider.js';
import type { FoundAttempts } from '../limit.types.js';
import { defineScript, type Script, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

// The scripts of the limiter beside those that check calls. Each replies 1, or what it has found.

function decode(reply: unknown): void {
  if (reply !== 1) unexpectedReply('limit', reply);
}

function decodeFound(reply: unknown): FoundAttempts {
  if (!Array.isArray(reply) || !reply.every(Number.isInteger)) return unexpectedReply('limit', reply);
  const [blocked, attempts] = reply as number[];
  return { blocked: blocked === 1, attempts: attempts as number };
}

/** The most blocks that are noted of one account. Those that end first are forgotten. */
const MAX_NOTED = 10_000;

/**
 * Sets `answer` to what there is: a block, and the attempts of the longest window with those of a fixed window.
 *
 * @param foreign - what runs if the fixed window is not ours
 */
const find = (foreign?: string): string => /* lua */ `
${NOW_MS}
local call = redis.call
local found = redis.pcall('ZCOUNT', attempts, '(' .. nowMs - shortWindowMs, '+inf')
local value = redis.pcall('GET', window)
if type(value) ~= 'string' then value = nil end
${parseWindow({ foreign })}
local blockMs = call('PTTL', block)
local isBlocked = blockMs > 0 or blockMs == -1 or blockEndsAtMs - nowMs > 0
local isOpen = endsAtMs - nowMs > 0
local answer = {isBlocked and 1 or 0, (type(found) == 'number' and found or 0) + (isOpen and counted or 0)}`;

/**
 * limit-withdraw: Takes a call back.
 * KEYS: attempts, block, penalties
 * ARGV: callId, cost, forget ('1' also removes what its route has counted, with the strikes, unless there is a block)
 * Reply: 1
 * Atomic: a block that is set meanwhile keeps the failures that it was set for.
 */
export const withdrawScript = defineScript({
  name: 'limit-withdraw',
  keys: ['attempts', 'block', 'penalties'],
  args: ['callId', 'cost', 'forget'],
  lua: /* lua */ `
local members = {callId}
for i = 2, tonumber(cost) do members[i] = callId .. ':' .. i end
members[#members + 1] = callId .. ':0'
local blocked = redis.call('GET', block) and redis.call('PTTL', block) ~= 0
local penaltiesValue = redis.call('GET', penalties)
${parsePenalties(ALL_PENALTIES)}
redis.call('ZREM', attempts, unpack(members))
if forget ~= '1' or blocked then return 1 end
local route = string.sub(callId, ${ROUTE_AT})
for _, member in ipairs(redis.call('ZRANGEBYSCORE', attempts, 0, '+inf')) do
  if string.match(member, '^[^:]*', ${ROUTE_AT}) == route then redis.call('ZREM', attempts, member) end
end
if struckBy == route and shortStrikes + longStrikes > 0 then
  shortStrikes, longStrikes = 0, 0
  redis.call('SET', penalties, ${formatPenalties('forgiven')}, 'KEEPTTL')
end
return 1`,
  decode,
});

/**
 * limit-renew: Keeps a call in flight that its process still works on. A member of its own remembers when it began.
 * KEYS: attempts
 * ARGV: callId, cost, keepMs
 * Reply: 1
 * Atomic: a flight that lapses meanwhile counts once.
 */
export const renewScript = defineScript({
  name: 'limit-renew',
  keys: ['attempts'],
  args: ['callId', 'cost', 'keepMs'],
  lua: /* lua */ `
local since = tonumber(redis.call('ZSCORE', attempts, callId) or nil) or 0
if since >= 0 then return 1 end
${NOW_MS}
redis.call('ZADD', attempts, 'NX', since - ${BEGAN}, callId .. ':0')
redis.call('ZADD', attempts, 'XX', -nowMs, callId)
for i = 2, tonumber(cost) do redis.call('ZADD', attempts, 'XX', -nowMs, callId .. ':' .. i) end
redis.call('PEXPIRE', attempts, keepMs)
return 1`,
  decode,
});

/**
 * limit-forgive: Removes the newest attempts, and lowers the count of the open window. Calls in flight stay.
 * KEYS: attempts, window, block, penalties
 * ARGV: callId, amount, shortWindowMs (the longest of the policy), penaltiesTtlMs, endsInMs (a window that ends later is
 * another one)
 * Reply: blocked (0 or 1), attempts before
 * Atomic: a call that is sent twice finds its own id, and forgives once.
 */
export const forgiveScript = defineScript({
  name: 'limit-forgive',
  keys: ['attempts', 'window', 'block', 'penalties'],
  args: ['callId', 'amount', 'shortWindowMs', 'penaltiesTtlMs', 'endsInMs'],
  lua: /* lua */ `
redis.call('GET', window)${find()}
local penaltiesValue = call('GET', penalties)
${parsePenalties(ALL_PENALTIES)}
if forgiven == callId then return answer end
local newest = math.min(call('ZCOUNT', attempts, 0, '+inf'), tonumber(amount))
local isMeant = isOpen and endsAtMs - nowMs <= tonumber(endsInMs)
local lowered = isMeant and math.min(counted, amount) or 0
if newest + lowered == 0 then return answer end
local endless = call('PTTL', penalties) < 0
-- Removes nothing yet. An ACL that forbids it refuses the script here, and a full server allows every write after it.
call('ZREMRANGEBYRANK', attempts, 1, 0)
if endless then
  call('SET', penalties, ${formatPenalties('callId')}, 'PX', penaltiesTtlMs)
else
  call('SET', penalties, ${formatPenalties('callId')}, 'KEEPTTL')
end
if newest > 0 then call('ZREMRANGEBYRANK', attempts, -newest, -1) end
if lowered > 0 then
  ${writeWindow(`(string.gsub(value, '%d+$', counted - lowered))`)}
end
return answer`,
  decode: decodeFound,
});

/**
 * limit-reset: Removes everything of an identity.
 * KEYS: attempts, window, block, penalties
 * ARGV: shortWindowMs (the longest of the policy)
 * Reply: blocked (0 or 1), attempts before
 * Atomic: no check sees a part of it.
 */
export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['attempts', 'window', 'block', 'penalties'],
  args: ['shortWindowMs'],
  lua: /* lua */ `${find('blockEndsAtMs, endsAtMs, counted = 0, 0, 0')}
call('DEL', attempts, window, block, penalties)
return answer`,
  decode: decodeFound,
});

/**
 * limit-block: Sets a block by hand.
 * KEYS: block
 * ARGV: blockMs, reason (percent-encoded)
 * Reply: 1
 * Atomic: a value of another type is found before the write.
 */
export const blockScript = defineScript({
  name: 'limit-block',
  keys: ['block'],
  args: ['blockMs', 'reason'],
  lua: /* lua */ `
redis.call('GET', block)
redis.call('SET', block, 'manual 0 0 ' .. blockMs .. ' ' .. reason, 'PX', blockMs)
return 1`,
  decode,
});

/**
 * limit-block-window: Sets a block by hand in the key of a fixed window, whose count it keeps.
 * KEYS: window
 * ARGV: blockMs, reason (percent-encoded), shortWindowMs
 * Reply: 1
 * Atomic: no call is counted between the look at the count and the block.
 */
export const blockWindowScript = defineScript({
  name: 'limit-block-window',
  keys: ['window'],
  args: ['blockMs', 'reason', 'shortWindowMs'],
  lua: /* lua */ `
${NOW_MS}
local call = redis.call
local value = call('GET', window)
${parseWindow({ replacesBlock: true })}
if endsAtMs - nowMs <= 0 then endsAtMs, counted = 0, 0 end
local blockEndsAtMs = nowMs + blockMs
${writeBlock('manual', '0 0', 'reason', 'counted')}
return 1`,
  decode,
});

/**
 * limit-unblock: Ends a block. The floor of its tier was set together with the block, so the window of that tier
 * begins afresh. A fixed window goes on.
 * KEYS: attempts, window, block
 * ARGV: shortWindowMs (the longest of the policy)
 * Reply: blocked (0 or 1), attempts
 * Atomic: a value of another type is found before it is deleted.
 */
export const unblockScript = defineScript({
  name: 'limit-unblock',
  keys: ['attempts', 'window', 'block'],
  args: ['shortWindowMs'],
  lua: /* lua */ `${find()}
call('GET', block)
call('DEL', block)
if blockEndsAtMs == 0 then return answer end
if isOpen then
  blockEndsAtMs = 0
  ${writeWindow('counted')}
else
  call('DEL', window)
end
return answer`,
  decode: decodeFound,
});

/**
 * limit-note: Notes the block of an identity under its account.
 * KEYS: noted
 * ARGV: tag, blockMs
 * Reply: 1
 * Atomic: the notes live as long as the longest block among them, and those that have ended are gone.
 */
export const noteScript = defineScript({
  name: 'limit-note',
  keys: ['noted'],
  args: ['tag', 'blockMs'],
  lua: /* lua */ `
${NOW_MS}
local leftMs = redis.call('PTTL', noted)
redis.call('ZADD', noted, nowMs + blockMs, tag)
local ends = leftMs < tonumber(blockMs) and redis.pcall('PEXPIRE', noted, blockMs)
if type(ends) == 'table' then
  redis.call('ZREM', noted, tag)
  error(ends.err, 0)
end
redis.call('ZREMRANGEBYSCORE', noted, '-inf', nowMs)
redis.call('ZREMRANGEBYRANK', noted, 0, ${-1 - MAX_NOTED})
return 1`,
  decode,
});

/**
 * limit-noted: Returns the tags of identities whose blocks are noted.
 * KEYS: noted
 * ARGV: none
 * Reply: the tags
 * Atomic: a single command.
 */
export const notedScript = defineScript({
  name: 'limit-noted',
  keys: ['noted'],
  args: [],
  lua: /* lua */ `
return redis.call('ZRANGE', noted, 0, -1)`,
  decode(reply: unknown): string[] {
    if (!Array.isArray(reply)) return unexpectedReply('limit', reply);
    return reply as string[];
  },
});

/**
 * limit-lift: Removes everything of an identity that is blocked, unless the block was set by hand.
 * KEYS: attempts, window, block, penalties
 * ARGV: none
 * Reply: 1 if it was removed, 0 if not
 * Atomic: a block that is set by hand meanwhile stays.
 */
export const liftScript = defineScript({
  name: 'limit-lift',
  keys: ['attempts', 'window', 'block', 'penalties'],
  args: [],
  lua: /* lua */ `
${NOW_MS}
local value = redis.call('GET', block)
local isBlocked = value and redis.call('PTTL', block) ~= 0
if not isBlocked then
  value = redis.call('GET', window)
  ${BLOCK_END}
  isBlocked = blockEndsAtMs and blockEndsAtMs - nowMs > 0
end
if not isBlocked or string.find(value, '^manual') then return 0 end
redis.call('DEL', attempts, window, block, penalties)
return 1`,
  decode: (reply: unknown): number => (typeof reply === 'number' ? reply : unexpectedReply('limit', reply)),
});

/** Those that are registered at boot. A check is registered at its first call. */
export const limitScripts: readonly Script[] = [
  withdrawScript,
  renewScript,
  forgiveScript,
  resetScript,
  blockScript,
  blockWindowScript,
  unblockScript,
  noteScript,
  notedScript,
  liftScript,
];
