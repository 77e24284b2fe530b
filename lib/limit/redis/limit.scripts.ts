import {
  blockedScript,
  decode,
  liftScript,
  notedScript,
  noteScript,
  whoseScript,
} from './blocked.scripts.js';
import { ALL_PENALTIES, formatPenalties, parsePenalties, ROUTE_AT } from './limit.fragments.js';
import { BEGAN } from './log.decider.js';
import { parseWindow, writeBlock, writeWindow } from './window.decider.js';
import type { FoundAttempts } from '../limit.types.js';
import { defineScript, type Script, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

// The scripts of the limiter beside those that check calls. Each replies 1, or what it has found.

function decodeFound(reply: unknown): FoundAttempts {
  if (!Array.isArray(reply) || !reply.every(Number.isInteger)) return unexpectedReply('limit', reply);
  const [blocked, attempts] = reply as number[];
  return { blocked: blocked === 1, attempts: attempts as number };
}

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
 * KEYS: attempts, window, block, penalties, whose
 * ARGV: shortWindowMs (the longest of the policy)
 * Reply: blocked (0 or 1), attempts before
 * Atomic: no check sees a part of it.
 */
export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['attempts', 'window', 'block', 'penalties', 'whose'],
  args: ['shortWindowMs'],
  lua: /* lua */ `${find('blockEndsAtMs, endsAtMs, counted = 0, 0, 0')}
call('DEL', attempts, window, block, penalties, whose)
return answer`,
  decode: decodeFound,
});

/**
 * limit-block: Sets a block by hand. That of a fixed window stands in the key of the window, whose count it keeps.
 * KEYS: window, block
 * ARGV: isWindow ('1': of a fixed window), blockMs, reason (percent-encoded), shortWindowMs
 * Reply: 1
 * Atomic: no call is counted between the look at the count and the block. A value of another type is found before the write.
 */
export const blockScript = defineScript({
  name: 'limit-block',
  keys: ['window', 'block'],
  args: ['isWindow', 'blockMs', 'reason', 'shortWindowMs'],
  lua: /* lua */ `
local call = redis.call
if isWindow ~= '1' then
  call('GET', block)
  call('SET', block, 'manual 0 0 ' .. blockMs .. ' ' .. reason, 'PX', blockMs)
  return 1
end
${NOW_MS}
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
 * KEYS: attempts, window, block, whose
 * ARGV: shortWindowMs (the longest of the policy)
 * Reply: blocked (0 or 1), attempts
 * Atomic: a value of another type is found before it is deleted.
 */
export const unblockScript = defineScript({
  name: 'limit-unblock',
  keys: ['attempts', 'window', 'block', 'whose'],
  args: ['shortWindowMs'],
  lua: /* lua */ `${find()}
call('GET', block)
call('DEL', block, whose)
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

/** Those that are registered at boot. A check is registered at its first call. */
export const limitScripts: readonly Script[] = [
  withdrawScript,
  renewScript,
  forgiveScript,
  resetScript,
  blockScript,
  unblockScript,
  whoseScript,
  blockedScript,
  noteScript,
  notedScript,
  liftScript,
];
