import { takeApart } from '../../script/fragments.js';
import { CALL_ID_LENGTH } from '../limit.backend.js';

/** Where the route begins in the id of a call: see `createCallId`. */
export const ROUTE_AT = CALL_ID_LENGTH + 1;

// Lua that several scripts of the limiter share. These are text fragments and not Lua functions, because each run of a
// script would create the functions anew. Each script has a local `call`, because `redis.call` costs two look-ups.

/** Indents all lines of a fragment but the first. */
export function indent(lua: string, by: number): string {
  return lua.trim().replaceAll('\n', `\n${' '.repeat(by)}`);
}

/** Sets `nowMs` by the server's clock, unless another limit of the same call has set it. */
export const NOW_MS_ONCE = /* lua */ `
-- Reads: call.
-- Changes: nowMs.
if not nowMs then
  local time = call('TIME')
  nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
end`;

/** Gives a key that has lost its TTL a new one. */
export const heal = (key: string, ttlMs: string): string =>
  `if commit and call('PTTL', ${key}) == -1 then\n  call('PEXPIRE', ${key}, ${ttlMs})\nend`;

/**
 * Denies the call if there is a block. Expects the value of the block in `blockValue`. Sets `remainingMs` to the time until
 * the block ends. If the block has lost its TTL, it starts again in full, and the commands of `heals` run.
 */
export const denyIfBlocked = (...heals: string[]): string => /* lua */ `
if blockValue then
  local remainingMs = call('PTTL', block)
  if remainingMs < 0 then
    remainingMs = tonumber(string.match(blockValue, '^%a+ %d+ %d+ (%d+)'))
    if not remainingMs then error('SYNCGUARD_FOREIGN the block is not ours', 0) end
    ${indent([heal('block', 'remainingMs'), ...heals].join('\n'), 4)}
  end
  if remainingMs > 0 then return remainingMs .. ' ' .. blockValue end
end`;

/** The reply to a call that is not counted. A limit of 0 denies it. */
export const UNCOUNTED = `return shortThreshold == 0 and shortWindowMs .. ' window 0 0' or '0 ok 0 0'`;

const PENALTIES = {
  shortFloor: '%d+',
  longFloor: '%d+',
  shortStrikes: '%d+',
  longStrikes: '%d+',
  forgiven: '[%w_-]*',
  struckBy: '[%w_*-]*',
};

export type Penalty = keyof typeof PENALTIES;

const TEXTS: ReadonlySet<Penalty> = new Set(['forgiven', 'struckBy']);

export const FLOORS = ['shortFloor', 'longFloor'] as const satisfies Penalty[];
export const ALL_PENALTIES = Object.keys(PENALTIES) as Penalty[];

/** Sets locals to fields of `penaltiesValue`. check.script.ts says what they mean. A script that only counts needs FLOORS. */
export const parsePenalties = (names: readonly Penalty[]): string => /* lua */ `
-- Reads: penaltiesValue.
-- Sets: ${names.join(', ')}.
local ${names.join(', ')} = ${names.map((name) => (TEXTS.has(name) ? "''" : 0)).join(', ')}
if penaltiesValue then
  ${indent(takeApart('penaltiesValue', PENALTIES, names), 2)}
  if not shortFloor then error('SYNCGUARD_FOREIGN the penalties are not ours', 0) end
  shortFloor, longFloor = tonumber(shortFloor), tonumber(longFloor)
end`;

export const formatPenalties = (by: string): string =>
  `string.format('%.0f %.0f %.0f %.0f %s %s',\n  shortFloor, longFloor, shortStrikes, longStrikes, ${by}, struckBy)`;

/** A tier of a policy, as the names of its numbers begin: `shortWindowMs`, `longCount`. */
export type TierName = 'short' | 'long';
export type Tiers = readonly TierName[];
export const TIERS: Tiers = ['short', 'long'];
