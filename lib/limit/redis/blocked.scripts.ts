import { defineScript, unexpectedReply } from '../../script/define-script.js';
import { NOW_MS } from '../../script/fragments.js';
import type { BlockedKey } from '../limit.types.js';
import { decodeDecision } from './check.script.js';
import { denyIfBlocked, indent } from './limit.fragments.js';
import { BLOCK_END } from './window.decider.js';

// The scripts that find blocks again: those of an account, and all that there are.

/** Of a script that has nothing to tell. */
export function decode(reply: unknown): void {
  if (reply !== 1) unexpectedReply('limit', reply);
}

/** The most blocks that are noted of one account. Those that end first are forgotten. */
const MAX_NOTED = 10_000;

/**
 * limit-whose: Notes whose a block is.
 * KEYS: whose
 * ARGV: owner ("<tag> <policy>"), blockMs
 * Reply: 1
 * Atomic: of two blocks that are set at the same time, the note lives as long as the longer one.
 */
export const whoseScript = defineScript({
  name: 'limit-whose',
  keys: ['whose'],
  args: ['owner', 'blockMs'],
  lua: /* lua */ `
redis.call('GET', whose)
if redis.call('PTTL', whose) < tonumber(blockMs) then redis.call('SET', whose, owner, 'PX', blockMs) end
return 1`,
  decode,
});

/**
 * limit-blocked: Returns the block of an identity, and whose it is.
 * KEYS: window, block, whose
 * ARGV: none
 * Reply: nothing if there is none, else the denial that a call would get, whose it is (or an empty text), and the time in ms
 * Atomic: what is said of whom is of this block.
 */
export const blockedScript = defineScript({
  name: 'limit-blocked',
  keys: ['window', 'block', 'whose'],
  args: [],
  lua: /* lua */ `
${NOW_MS}
local call, commit = redis.call, false
local function find()
  local blockValue = call('GET', block)
  ${indent(denyIfBlocked(), 2)}
  local value = call('GET', window)
  ${BLOCK_END}
  if blockEndsAtMs and blockEndsAtMs - nowMs > 0 then return blockEndsAtMs - nowMs .. ' ' .. value end
end
local denial, owner = find(), redis.pcall('GET', whose)
if not denial then return {} end
return {denial, type(owner) == 'string' and owner or '', nowMs}`,
  decode(reply: unknown): BlockedBlock | null {
    if (!Array.isArray(reply)) return unexpectedReply('limit', reply);
    const [denial, owner, nowMs] = reply as [string, string, number];
    if (denial === undefined) return null;
    const decision = decodeDecision(denial);
    if (decision.status !== 'denied') return unexpectedReply('limit', reply);
    const { scope, reason, retryAfterMs } = decision;
    const [, tag, policy] = /^(\S+) (.+)$/.exec(owner) ?? [];
    const known = tag === undefined || policy === undefined ? {} : { policy, tag };
    return { ...known, scope, reason, endsAtMs: nowMs + retryAfterMs };
  },
});

/** Without a tag nobody has said whose it is. */
type BlockedBlock = Omit<BlockedKey, 'tag'> & Partial<Pick<BlockedKey, 'tag'>>;

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
 * KEYS: attempts, window, block, penalties, whose
 * ARGV: none
 * Reply: 1 if it was removed, 0 if not
 * Atomic: a block that is set by hand meanwhile stays.
 */
export const liftScript = defineScript({
  name: 'limit-lift',
  keys: ['attempts', 'window', 'block', 'penalties', 'whose'],
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
redis.call('DEL', attempts, window, block, penalties, whose)
return 1`,
  decode: (reply: unknown): number => (typeof reply === 'number' ? reply : unexpectedReply('limit', reply)),
});
