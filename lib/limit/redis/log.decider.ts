import { BUSY_RETRY_MS } from '../limit.times.js';
import {
  addCall,
  ALL_PENALTIES,
  allowed,
  CHECK_BLOCK_KEYS,
  countAttempts,
  COUNTED_AT,
  countsOf,
  countWithFlights,
  DENY_IF_BLOCKED,
  FLOORS,
  fullTiers,
  heal,
  indent,
  KEEP,
  NEWEST,
  openLog,
  READ_STATE,
  readPenalties,
  SCORE,
  setBlock,
  type TierName,
  type Tiers,
  WAIT_FOR_ROOM,
} from './limit.fragments.js';

// The Lua of each decider has what the policy's tiers need, one or two. redis/check.script.ts names the numbers that it finds.

const waitFor = (needed: string, tier: TierName): string =>
  `waitForRoom(${needed}, ${tier}Count, ${tier}Threshold, ${tier}From, ${tier}WindowMs)`;

/** Denies a call under a limit without a block, until enough of the oldest attempts leave the window for it to fit. */
const denyUntilRoom = (tiers: Tiers): string => /* lua */ `
${heal('attempts', 'keepMs')}
${WAIT_FOR_ROOM}
return ${waitFor('cost', 'short')}
  .. ' window ' .. ${countsOf(tiers)}`;

const anyFull = (tiers: Tiers): string => tiers.map((tier) => `${tier}Full`).join(' or ');

/** Counts a call, and sets a block if the call fills a tier. A call that is counted already does neither. */
export const attempt = (tiers: Tiers): string => /* lua */ `${openLog(tiers, ALL_PENALTIES)}
${countAttempts(tiers)}
${fullTiers(tiers, 'cost')}
local blocks, newest = ${anyFull(tiers)}, latest
if blocks then
  if ${SCORE} then
    return ${allowed(tiers)}
  end
  if shortBlockMs == 0 then
    ${indent(denyUntilRoom(tiers), 4)}
  end
  ${indent(CHECK_BLOCK_KEYS, 2)}
  if not commit then return '1 temp' end
  newest = math.max(newest, ${NEWEST})
end
if commit then
  local keptMs = size > 0 and call('PTTL', attempts) or 0
  local added
  ${indent(addCall('NX', 'latest', 'added = '), 2)}
  -- To look costs less than to write. Half of the slack may be used up.
  if keptMs < renewMs then
    ${indent(KEEP, 4)}
  end
  shortCount = shortCount + added
  ${tiers.length === 1 ? '' : 'longCount = longCount + added'}
end
if not blocks then
  return ${allowed(tiers)}
end
${setBlock(tiers)}`;

/** Keeps a call as in flight, if there is room for it beside the calls that count and those in flight. */
const enterWith =
  (needed: string) =>
  (tiers: Tiers): string => /* lua */ `${openLog(tiers, FLOORS)}
local known
${countWithFlights(tiers, `known = ${SCORE}`)}
local needed = ${needed}
local taken = inFlight + needed
local busy = ${tiers.map((tier) => `${tier}Count + taken >= ${tier}Threshold`).join(' or ')}
-- To add a call that is known changes nothing.
if known or busy and ${SCORE} then
  return ${allowed(tiers)}
end
if busy then
  ${indent(heal('attempts', 'keepMs'), 2)}
  ${indent(WAIT_FOR_ROOM, 2)}
  local waitMs = math.max(0,
    ${tiers.map((tier) => waitFor('needed', tier)).join(',\n    ')})
  return (waitMs > 0 and waitMs .. ' window ' or '${BUSY_RETRY_MS} busy ') .. ${countsOf(tiers)}
end
if commit then
  ${indent(addCall('NX', '-nowMs'), 2)}
  ${indent(KEEP, 2)}
end
return ${allowed(tiers)}`;

/**
 * Lets a call in that may become a failure. With a block, the call that would fill a tier may enter: if it fails, it sets the
 * block. Without one it needs room.
 */
export const enter = enterWith('shortBlockMs == 0 and cost or 0');

/**
 * Keeps room for a call that may succeed. A success that has happened cannot be denied any more. So the call takes up room
 * from the start, and counts unless it is withdrawn.
 */
export const reserve = enterWith('cost');

/** Counts a call in flight, even while there is a block. */
const countFlight = (
  tiers: Tiers,
  penalties: Parameters<typeof readPenalties>[1],
): string => /* lua */ `${READ_STATE}
${readPenalties(tiers, penalties)}
if (${SCORE} or -1) < 0 then
  ${indent(CHECK_BLOCK_KEYS, 2)}
  local score = ${COUNTED_AT}
  ${indent(addCall('CH', 'score'), 2)}
  ${indent(KEEP, 2)}
end
${DENY_IF_BLOCKED}
${countWithFlights(tiers)}`;

/** Counts a call in flight. It sets the block if a tier is full when `next` more would come. */
const settleWith =
  (next: string) =>
  (tiers: Tiers): string => /* lua */ `${countFlight(tiers, ALL_PENALTIES)}
${fullTiers(tiers, next)}
if shortBlockMs == 0 or not (${anyFull(tiers)}) then
  return ${allowed(tiers)}
end
${CHECK_BLOCK_KEYS}
${heal('attempts', 'keepMs')}
local newest = ${NEWEST}
${setBlock(tiers)}`;

/** Counts a call in flight as a failure. The failure that fills a tier is denied itself. */
export const confirm = settleWith('0');

/** Counts a call in flight as a success. The success that fills a tier sets the block, and is answered as it is. */
export const grant = settleWith('1');

/** Counts a call in flight, and never sets a block. */
export const fill = (tiers: Tiers): string => /* lua */ `${countFlight(tiers, FLOORS)}
return ${allowed(tiers)}`;

/** Decides as a call would be decided, and writes nothing. The time until the window is empty is exact. */
export const peek = (tiers: Tiers): string => /* lua */ `${CHECK_BLOCK_KEYS}
${openLog(tiers, FLOORS)}
${tiers.map((tier) => `local ${tier}Count = call('ZCOUNT', attempts, ${tier}From + 1, '+inf')`).join('\n')}
if shortBlockMs == 0 and shortCount + cost >= shortThreshold then
  ${indent(denyUntilRoom(tiers), 2)}
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + shortWindowMs
end
local known = penaltiesValue or call('ZCARD', attempts) > 0
return resetMs .. (known and ' ok ' or ' unknown ') .. ${countsOf(tiers)}`;
