import { ALL_PENALTIES, BEGAN, formatPenalties, parsePenalties, ROUTE_AT } from './limit.fragments.js';
import { PARSE_WINDOW, writeWindow } from './window.decider.js';
import { defineScript, type Script, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';

// The scripts of the limiter beside those that check calls. Each replies 1.

function decode(reply: unknown): void {
  if (reply !== 1) unexpectedReply('limit', reply);
}

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
 * limit-forgive: Removes the newest attempts. Calls in flight stay.
 * KEYS: attempts, penalties
 * ARGV: callId, count, penaltiesTtlMs
 * Reply: 1
 * Atomic: a call that is sent twice finds its own id, and forgives once.
 */
export const forgiveScript = defineScript({
  name: 'limit-forgive',
  keys: ['attempts', 'penalties'],
  args: ['callId', 'count', 'penaltiesTtlMs'],
  lua: /* lua */ `
local penaltiesValue = redis.call('GET', penalties)
${parsePenalties(ALL_PENALTIES)}
if forgiven == callId then return 1 end
local newest = math.min(redis.call('ZCOUNT', attempts, 0, '+inf'), tonumber(count))
if newest == 0 then return 1 end
local endless = redis.call('PTTL', penalties) < 0
-- Removes nothing yet. An ACL that forbids it refuses the script here, and a full server allows every write after it.
redis.call('ZREMRANGEBYRANK', attempts, 1, 0)
if endless then
  redis.call('SET', penalties, ${formatPenalties('callId')}, 'PX', penaltiesTtlMs)
else
  redis.call('SET', penalties, ${formatPenalties('callId')}, 'KEEPTTL')
end
redis.call('ZREMRANGEBYRANK', attempts, -newest, -1)
return 1`,
  decode,
});

/**
 * limit-forgive-window: Lowers the count of the open window, but never below 0.
 * KEYS: window
 * ARGV: callId, amount
 * Reply: 1
 * Atomic: a call that is sent twice finds its own id, and lowers the count once.
 */
export const forgiveWindowScript = defineScript({
  name: 'limit-forgive-window',
  keys: ['window'],
  args: ['callId', 'amount'],
  lua: /* lua */ `
local call = redis.call
local value = call('GET', window)
${NOW_MS}
${PARSE_WINDOW}
if count == 0 or forgiven == callId then return 1 end
count, endsAtMs = math.max(0, count - amount), math.min(endsAtMs, fullEndMs)
${writeWindow('last', 'callId')}
return 1`,
  decode,
});

/**
 * limit-reset: Removes everything of an identity.
 * KEYS: counted (its attempts or its fixed window), block, penalties
 * ARGV: none
 * Reply: 1
 * Atomic: no check sees a part of it.
 */
export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['counted', 'block', 'penalties'],
  args: [],
  lua: /* lua */ `
redis.call('DEL', counted, block, penalties)
return 1`,
  decode,
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
 * limit-unblock: Ends a block. The floor of its tier was set together with the block, so the window of that tier
 * begins afresh.
 * KEYS: block
 * ARGV: none
 * Reply: 1
 * Atomic: a value of another type is found before it is deleted.
 */
export const unblockScript = defineScript({
  name: 'limit-unblock',
  keys: ['block'],
  args: [],
  lua: /* lua */ `
redis.call('GET', block)
redis.call('DEL', block)
return 1`,
  decode,
});

/** Those that are registered at boot. A check is registered at its first call. */
export const limitScripts: readonly Script[] = [
  withdrawScript,
  renewScript,
  forgiveScript,
  forgiveWindowScript,
  resetScript,
  blockScript,
  unblockScript,
];
