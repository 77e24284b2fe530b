import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import type { CounterReply } from '../counter.backend.js';

// The key is a HASH with the fields `count`, `endsAt` (the end of the window, in ms), `last` (the callId of the call
// that was counted last), and `call:<callId>` (the count after a call whose id is remembered). The end is a field, so
// that a window which lost its TTL still ends.
const WINDOW = /* lua */ `${NOW_MS}
local fields = redis.call('HMGET', counter, 'count', 'endsAt', 'last')
local count, endsAtMs = tonumber(fields[1] or 0), tonumber(fields[2] or 0)
if not (count and endsAtMs) then return redis.error_reply('SYNCGUARD_FOREIGN the key is not a counter') end
local ended = nowMs >= endsAtMs
if ended then count, endsAtMs = 0, 0 end

-- Counts are replied as text, because clients misread integers near 2^53.
local function text(number) return string.format('%d', number) end`;

/**
 * counter-increment: Counts up to a maximum, and never past it.
 * KEYS: counter
 * ARGV: callId, remember ('1' keeps the callId for the window), max, cost, windowMs
 * Reply: [1 counted or 0, count as text, ms until the window ends]
 * Atomic: calls at the same time never pass the maximum together.
 */
export const incrementScript = defineScript({
  name: 'counter-increment',
  keys: ['counter'],
  args: ['callId', 'remember', 'max', 'cost', 'windowMs'],
  lua: /* lua */ `${WINDOW}
local call = 'call:' .. callId
if not ended then
  local counted = redis.call('HGET', counter, call) or (fields[3] == callId and count)
  if counted then return {1, text(counted), endsAtMs - nowMs} end
end
if not fields[1] and redis.call('EXISTS', counter) == 1 then
  return redis.error_reply('SYNCGUARD_FOREIGN the key is not a counter')
end

local ttlMs = not ended and redis.call('PTTL', counter) or -2
if fields[1] and ended then redis.call('UNLINK', counter) end
local fits = count <= max - cost
if fits then
  count = count + cost
  if ended then endsAtMs = nowMs + windowMs end
  redis.call('HSET', counter, 'count', count, 'endsAt', endsAtMs, 'last', callId)
  if remember == '1' then redis.call('HSET', counter, call, count) end
end
if endsAtMs > 0 and ttlMs < 0 then
  local ends = redis.pcall('PEXPIREAT', counter, endsAtMs)
  if type(ends) == 'table' then
    if ended then redis.call('UNLINK', counter) end
    return ends
  end
end
return {fits and 1 or 0, text(count), math.max(0, endsAtMs - nowMs)}`,
  decode(reply): CounterReply {
    if (!Array.isArray(reply)) return unexpectedReply('counter-increment', reply);
    const [counted, count, resetMs] = reply as [number, string, number];
    return { ok: counted === 1, count: Number(count), resetMs };
  },
});

/**
 * counter-peek: Reads the count.
 * KEYS: counter
 * ARGV: none
 * Reply: [count as text, ms until the window ends]
 * Atomic: the count and the time by which its window ends belong together.
 */
export const peekCounterScript = defineScript({
  name: 'counter-peek',
  keys: ['counter'],
  args: [],
  lua: /* lua */ `${WINDOW}
return {text(count), math.max(0, endsAtMs - nowMs)}`,
  decode(reply): Omit<CounterReply, 'ok'> {
    if (!Array.isArray(reply)) return unexpectedReply('counter-peek', reply);
    const [count, resetMs] = reply as [string, number];
    return { count: Number(count), resetMs };
  },
});

/**
 * counter-reset: Deletes the count.
 * KEYS: counter
 * ARGV: none
 * Reply: how many keys were deleted
 * Atomic: only a key of the right type is deleted.
 */
export const resetCounterScript = defineScript({
  name: 'counter-reset',
  keys: ['counter'],
  args: [],
  lua: /* lua */ `
redis.call('HLEN', counter) -- fails if the key has another type, before it is deleted
return redis.call('UNLINK', counter)`,
  decode: (reply): void => (typeof reply === 'number' ? undefined : unexpectedReply('counter-reset', reply)),
});

export const counterScripts = [incrementScript, peekCounterScript, resetCounterScript];
