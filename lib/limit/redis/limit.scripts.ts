import { ALL_PENALTIES, BEGAN, formatPenalties, parsePenalties, ROUTE_AT } from './limit.fragments.js';
import { PARSE_WINDOW, writeWindow } from './window.decider.js';
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

/** Sets `answer` to what there is: a block, and the attempts of the longest window or those of a fixed window, which is a text. */
const findAttempts = (counted: string): string => /* lua */ `
${NOW_MS}
local found = redis.pcall('ZCOUNT', ${counted}, '(' .. nowMs - withinMs, '+inf')
if type(found) ~= 'number' then
  local text = redis.pcall('GET', ${counted})
  local number, ends = string.match(type(text) == 'string' and text or '', '^(%d+) (%d+) ')
  found = tonumber(ends or 0) > nowMs and tonumber(number) or 0
end
local leftMs = redis.call('PTTL', block)
local answer = {(leftMs > 0 or leftMs == -1) and 1 or 0, found}`;

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
 * KEYS: attempts, penalties, block
 * ARGV: callId, count, penaltiesTtlMs, withinMs
 * Reply: blocked (0 or 1), attempts before
 * Atomic: a call that is sent twice finds its own id, and forgives once.
 */
export const forgiveScript = defineScript({
  name: 'limit-forgive',
  keys: ['attempts', 'penalties', 'block'],
  args: ['callId', 'count', 'penaltiesTtlMs', 'withinMs'],
  lua: /* lua */ `${findAttempts('attempts')}
local penaltiesValue = redis.call('GET', penalties)
${parsePenalties(ALL_PENALTIES)}
if forgiven == callId then return answer end
local newest = math.min(redis.call('ZCOUNT', attempts, 0, '+inf'), tonumber(count))
if newest == 0 then return answer end
local endless = redis.call('PTTL', penalties) < 0
-- Removes nothing yet. An ACL that forbids it refuses the script here, and a full server allows every write after it.
redis.call('ZREMRANGEBYRANK', attempts, 1, 0)
if endless then
  redis.call('SET', penalties, ${formatPenalties('callId')}, 'PX', penaltiesTtlMs)
else
  redis.call('SET', penalties, ${formatPenalties('callId')}, 'KEEPTTL')
end
redis.call('ZREMRANGEBYRANK', attempts, -newest, -1)
return answer`,
  decode: decodeFound,
});

/**
 * limit-forgive-window: Lowers the count of the open window, but never below 0.
 * KEYS: window, block
 * ARGV: callId, amount, withinMs
 * Reply: blocked (0 or 1), the count before
 * Atomic: a call that is sent twice finds its own id, and lowers the count once.
 */
export const forgiveWindowScript = defineScript({
  name: 'limit-forgive-window',
  keys: ['window', 'block'],
  args: ['callId', 'amount', 'withinMs'],
  lua: /* lua */ `${findAttempts('window')}
local call = redis.call
local value = call('GET', window)
${PARSE_WINDOW}
if count == 0 or forgiven == callId then return answer end
count, endsAtMs = math.max(0, count - amount), math.min(endsAtMs, fullEndMs)
${writeWindow('last', 'callId')}
return answer`,
  decode: decodeFound,
});

/**
 * limit-reset: Removes everything of an identity.
 * KEYS: counted (its attempts or its fixed window), block, penalties
 * ARGV: withinMs
 * Reply: blocked (0 or 1), attempts before
 * Atomic: no check sees a part of it.
 */
export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['counted', 'block', 'penalties'],
  args: ['withinMs'],
  lua: /* lua */ `${findAttempts('counted')}
redis.call('DEL', counted, block, penalties)
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
 * limit-unblock: Ends a block. The floor of its tier was set together with the block, so the window of that tier
 * begins afresh.
 * KEYS: block, counted (its attempts or its fixed window)
 * ARGV: withinMs
 * Reply: blocked (0 or 1), attempts
 * Atomic: a value of another type is found before it is deleted.
 */
export const unblockScript = defineScript({
  name: 'limit-unblock',
  keys: ['block', 'counted'],
  args: ['withinMs'],
  lua: /* lua */ `${findAttempts('counted')}
redis.call('GET', block)
redis.call('DEL', block)
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
 * KEYS: attempts, block, penalties
 * ARGV: none
 * Reply: 1 if it was removed, 0 if not
 * Atomic: a block that is set by hand meanwhile stays.
 */
export const liftScript = defineScript({
  name: 'limit-lift',
  keys: ['attempts', 'block', 'penalties'],
  args: [],
  lua: /* lua */ `
local value = redis.call('GET', block)
if not value or string.find(value, '^manual') or redis.call('PTTL', block) == 0 then return 0 end
redis.call('DEL', attempts, block, penalties)
return 1`,
  decode: (reply: unknown): number => (typeof reply === 'number' ? reply : unexpectedReply('limit', reply)),
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
  noteScript,
  notedScript,
  liftScript,
];
