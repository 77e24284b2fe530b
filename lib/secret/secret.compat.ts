import { SyncGuardError } from '../core/errors.js';

/**
 * A script for programs that store secrets as JSON documents with a `viewsRemaining` (docs/wire-format.md). New
 * programs use the SecretService. Run it by `EVAL`:
 *
 * - `KEYS[1]`: the document, a String. There is no ARGV.
 * - Replies nil where there is no document.
 * - Replies JSON `{secret, burned}`: the document after this view. It is deleted when `burned` is true.
 * - Replies JSON `{error}`: `invalid_json`, or `invalid_viewsRemaining_type` for anything but an integer from 1 to 2^53
 *   - 1. The key stays unchanged then, and nothing of it is revealed.
 *
 * Only the digits of the top-level `viewsRemaining` change, and the TTL stays. The script parses the document itself,
 * because cjson turns `[]` into `{}`, loses digits of large numbers and accepts `nan`.
 *
 * @example
 * const result = parseDecrementResult(await redis.eval(ATOMIC_DECREMENT_SCRIPT, 1, `secret:${id}`));
 */
export const ATOMIC_DECREMENT_SCRIPT = `
local json = redis.call('GET', KEYS[1])
if not json then return nil end

local function failed(reason) return '{"error":"' .. reason .. '"}' end

local LITERALS = {['true'] = true, ['false'] = true, ['null'] = true}

local function isNumber(token)
  local rest = string.match(token, '^%-?0(.*)$') or string.match(token, '^%-?[1-9]%d*(.*)$')
  if not rest then return false end
  rest = string.match(rest, '^%.%d+(.*)$') or rest
  return rest == '' or string.find(rest, '^[eE][+-]?%d+$') ~= nil
end

-- Returns the position of the quote that ends the string which begins at 'from'.
local function endOfString(from)
  local at = from + 1
  while at do
    at = string.match(json, '^[^"\\\\%z\\1-\\31]*()', at)
    if string.sub(json, at, at) == '"' then return at end
    at = string.match(json, '^\\\\["\\\\/bfnrt]()', at) or string.match(json, '^\\\\u%x%x%x%x()', at)
  end
end

-- Returns the last position of the string, number or literal that begins at 'from'.
local function endOfScalar(from, isAny)
  if string.sub(json, from, from) == '"' then return endOfString(from) end
  local last = select(2, string.find(json, '^[^ \\t\\r\\n,:%[%]{}"]+', from))
  local token = string.sub(json, from, last)
  return (isAny or LITERALS[token] or isNumber(token)) and last
end

local function isViewsRemaining(key)
  if string.find(key, '\\\\', 1, true) then
    key = string.gsub(key, '\\\\u00(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  end
  return key == 'viewsRemaining'
end

-- What the next character may be. After a value that depends on the closing bracket of what is open.
local VALUE, FIRST_VALUE, KEY, FIRST_KEY, COLON, NOTHING = '[^%]},:]', '[^},:]', '"', '["}]', ':', '^$'
local AFTER_VALUE = {['}'] = '[,}]', [']'] = '[,%]]'}

-- Reads the document from end to end. 'closers' are the closing brackets of what is open. 'views' is the
-- first and the last position of the top-level viewsRemaining. The last of several counts, as in JSON.parse.
local closers, views, key = {}, nil, nil
local expected, at = VALUE, 1
while true do
  at = string.find(json, '[^ \\t\\r\\n]', at)
  if not at then break end
  local char, last = string.sub(json, at, at), at
  if not string.find(char, expected) then return failed('invalid_json') end

  if char == ',' then
    expected = closers[#closers] == '}' and KEY or VALUE
  elseif char == ':' then
    expected = VALUE
  elseif char == '}' or char == ']' then
    table.remove(closers)
    expected = AFTER_VALUE[closers[#closers]] or NOTHING
  elseif expected == KEY or expected == FIRST_KEY then
    last = endOfString(at)
    if not last then return failed('invalid_json') end
    key = #closers == 1 and string.sub(json, at + 1, last - 1)
    expected = COLON
  else
    -- nan and the like are no JSON, but as viewsRemaining they have an error of their own.
    local counts = #closers == 1 and closers[1] == '}' and isViewsRemaining(key)
    if char == '{' or char == '[' then
      table.insert(closers, char == '{' and '}' or ']')
      expected = char == '{' and FIRST_KEY or FIRST_VALUE
    else
      last = endOfScalar(at, counts)
      if not last then return failed('invalid_json') end
      expected = AFTER_VALUE[closers[#closers]] or NOTHING
    end
    if counts then views = {at, last} end
  end
  at = last + 1
end
if expected ~= NOTHING then return failed('invalid_json') end

local token = views and string.sub(json, views[1], views[2])
local count = token and isNumber(token) and tonumber(token)
if not count or count < 1 or count > 9007199254740991 or count % 1 ~= 0 then
  return failed('invalid_viewsRemaining_type')
end

local left = string.format('%d', count - 1)
local secret = string.sub(json, 1, views[1] - 1) .. left .. string.sub(json, views[2] + 1)
if count == 1 then
  redis.call('DEL', KEYS[1])
  return '{"secret":' .. secret .. ',"burned":true}'
end
redis.call('SET', KEYS[1], secret, 'KEEPTTL')
return '{"secret":' .. secret .. ',"burned":false}'
`;

/**
 * A counter with a maximum, for programs that share its keys (docs/wire-format.md). New programs use the
 * CounterService. Run it by `EVAL`:
 *
 * - `KEYS[1]`: the counter, a String. `ARGV[1]`: its maximum, an integer of at least 1. `ARGV[2]`: how long it lives
 *   from its first increment, in whole seconds, 1 to 10^10.
 * - Replies the new count, or -1 where the maximum is reached.
 * - Replies JSON `{error}`: `missing_arguments` or `invalid_arguments`. Nothing was written then.
 *
 * A counter that has lost its TTL gets a new TTL. Otherwise it would block for ever.
 *
 * @example
 * const count = parseIncrementResult(await redis.eval(ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT, 1, key, 100, 60));
 */
export const ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT = `
local key = KEYS[1]
if (ARGV[1] or '') == '' or (ARGV[2] or '') == '' then return '{"error":"missing_arguments"}' end

local function integer(text, max)
  local number = string.find(text, '^%d+$') and tonumber(text)
  return number and number >= 1 and number <= max and number
end
local max_count, expire_seconds = integer(ARGV[1], 9007199254740991), integer(ARGV[2], 10000000000)
if not max_count or not expire_seconds then return '{"error":"invalid_arguments"}' end

local current = redis.call('GET', key)
local count = current and tonumber(current) or 0
local limited = count >= max_count
if not limited then count = redis.call('INCR', key) end
if redis.call('TTL', key) == -1 then redis.call('EXPIRE', key, ARGV[2]) end
return limited and -1 or count
`;

/** The errors of the scripts, and `unexpected_reply`. */
export type InvalidResultCode =
  | 'invalid_json'
  | 'invalid_viewsRemaining_type'
  | 'missing_arguments'
  | 'invalid_arguments'
  /** The reply is not one of the script's. */
  | 'unexpected_reply';

/** Thrown by the parsers. `code` is the error of the script, or `unexpected_reply`. */
export class InvalidResultError extends SyncGuardError<InvalidResultCode> {
  static override readonly brand: string = 'InvalidResultError';

  constructor(code: InvalidResultCode, message: string) {
    super({ code, message });
  }
}

/** The document after the view. For a burned document this is the last copy. */
export interface DecrementResult<T> {
  /** The document. */
  secret: T;
  /** Whether this was the last view. */
  burned: boolean;
}

/**
 * Parses a reply of {@link ATOMIC_DECREMENT_SCRIPT}: JSON, or the object that some clients make of it.
 *
 * @typeParam T - the type of the document, which is not checked
 * @returns null where there is no such document
 * @throws InvalidResultError on an error of the script, and on any other reply
 */
export function parseDecrementResult<T = unknown>(reply: unknown): DecrementResult<T> | null {
  if (reply === null) return null;
  const result = resultOf(reply);
  if (isObject(result) && 'secret' in result && typeof result.burned === 'boolean')
    return result as unknown as DecrementResult<T>;
  throw unexpected('{ secret, burned }');
}

/**
 * Parses a reply of {@link ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT}: a number, also as a string, or an error.
 *
 * @returns the new count, -1 where the maximum is reached, or null for null
 * @throws InvalidResultError on an error of the script, and on any other reply
 */
export function parseIncrementResult(reply: unknown): number | null {
  if (reply === null) return null;
  const result = resultOf(reply);
  if (Number.isSafeInteger(result) && (result as number) >= -1) return result as number;
  throw unexpected('a count');
}

const ERRORS: Readonly<Record<string, string>> = {
  invalid_json: 'The document is not JSON.',
  invalid_viewsRemaining_type: 'The viewsRemaining of the document is not an integer of at least 1.',
  missing_arguments: 'The script was called without its maximum or without its seconds.',
  invalid_arguments: 'The maximum and the seconds must be integers of at least 1.',
} satisfies Record<Exclude<InvalidResultCode, 'unexpected_reply'>, string>;

/** Returns what the script has replied. Throws if that is an error. */
function resultOf(reply: unknown): unknown {
  const result = typeof reply === 'string' ? parseJson(reply) : reply;
  if (!isObject(result) || typeof result.error !== 'string') return result;
  const message = Object.hasOwn(ERRORS, result.error) ? ERRORS[result.error] : undefined;
  if (message) throw new InvalidResultError(result.error as InvalidResultCode, message);
  throw unexpected('an error of the script');
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The cause is left out: it would quote the text, which may be the secret.
    throw unexpected('JSON');
  }
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null;

const unexpected = (what: string): InvalidResultError =>
  new InvalidResultError('unexpected_reply', `The reply is not ${what}.`);
