import { takeApart } from '../../script/fragments.js';
import { denyIfBlocked, indent, NOW_MS_ONCE, UNCOUNTED } from './limit.fragments.js';

// A fixed window is one key. It holds its count as a number, and ends with its TTL. A block stands in the same key, as the text
// "<scope> <count> <count> <blockMs> <reason> <blockEndsAt> <windowEndsAt> <count of the window after the block>".

const BLOCKED = {
  ...{ scope: '%a+', shortCount: '%d+', longCount: '%d+', blockMs: '%d+', reason: '%S*' },
  ...{ blockEndsAtMs: '%d+', endsAtMs: '%d+', counted: '%d+' },
};

/** Sets `blockEndsAtMs` from `value`, or to nil if there is no block. */
export const BLOCK_END = `local ${takeApart(`value or ''`, BLOCKED, ['blockEndsAtMs'])}`;

/**
 * Sets `counted`, `endsAtMs` and, unless it is replaced, `blockEndsAtMs` from `value`: numbers, or texts of digits. `counted`
 * holds if `endsAtMs` is to come.
 *
 * @param foreign - what runs if the value is not ours
 */
export const parseWindow = ({
  foreign = `error('SYNCGUARD_FOREIGN the window is not ours', 0)`,
  replacesBlock = false,
} = {}): string => /* lua */ `
local leftMs = call('PTTL', window)
local counted, endsAtMs = string.match(value or '0', '^%d+$'), nowMs + leftMs
${replacesBlock ? '' : 'local blockEndsAtMs = 0'}
if not counted then
  ${takeApart('value', BLOCKED, [...(replacesBlock ? [] : (['blockEndsAtMs'] as const)), 'endsAtMs', 'counted'])}
  if not counted then
    ${foreign}
  end
elseif leftMs == -1 then
  endsAtMs = nowMs + shortWindowMs
end`;

/** Writes the window. Its key lives until the window and the block have ended. */
export const writeWindow = (value: string): string =>
  `call('SET', window, ${value}, 'PX', math.max(endsAtMs, blockEndsAtMs) - nowMs)`;

/** Writes a block. `count` is that of the window after it. */
export const writeBlock = (
  scope: string,
  counts: string,
  reason: string,
  count: string,
): string => /* lua */ `
local text = string.format('${scope} ${counts} %.0f %s %.0f %.0f %.0f',
  blockMs, ${reason}, blockEndsAtMs, endsAtMs, ${count})
${writeWindow('text')}`;

/** Reads the window without a write, and denies the call if there is a block. */
const READ_WINDOW = /* lua */ `
local value = call('GET', window)
${NOW_MS_ONCE}
${parseWindow()}
if blockEndsAtMs - nowMs > 0 then
  if commit and leftMs == -1 then
    ${writeWindow('value')}
  end
  return blockEndsAtMs - nowMs .. ' ' .. value
end`;

/**
 * A window that would end later than one that begins now has lost its TTL, or the clock has stepped back, or the policy's window
 * has become shorter: then it ends like one that begins now.
 */
const STANDING = /* lua */ `${READ_WINDOW}
local isOpen, fullEndMs = endsAtMs - nowMs > 0, nowMs + shortWindowMs
local heals = commit and isOpen and (leftMs == -1 or endsAtMs - fullEndMs > 0)
endsAtMs = isOpen and math.min(endsAtMs, fullEndMs) or fullEndMs
counted = isOpen and tonumber(counted) or 0`;

const DENY_UNTIL_END = /* lua */ `
if heals then
  ${writeWindow('counted')}
end
return endsAtMs - nowMs .. ' window ' .. counted .. ' ' .. counted`;

const BLOCK = /* lua */ `
if not commit then return '1 temp' end
local blockMs = shortBlockMs
blockEndsAtMs = nowMs + blockMs
counted = counted + cost
${writeBlock('temp', `' .. counted .. ' ' .. counted .. '`, `''`, '0')}
return blockMs .. ' ' .. text`;

const allow = (empty: 'ok' | 'unknown'): string => /* lua */ `
if counted == 0 then return '0 ${empty} 0 0' end
return endsAtMs - nowMs .. ' ok ' .. counted .. ' ' .. counted`;

/**
 * Counts a call in a fixed window, if it fits. A denied call sets the block of the policy, or waits until the window ends. Most
 * calls need no more than the first two commands. A block, and a full server, make INCRBY fail: then what stands in the
 * key decides.
 */
export const WINDOW = /* lua */ `
local refused
if commit then
  local restMs = call('PTTL', window)
  if restMs > 0 and restMs <= shortWindowMs then
    local count = redis.pcall('INCRBY', window, cost)
    if type(count) == 'number' then
      if count < shortThreshold then return restMs .. ' ok ' .. count .. ' ' .. count end
      count = call('INCRBY', window, -cost)
      if shortBlockMs == 0 then return restMs .. ' window ' .. count .. ' ' .. count end
    else
      refused = count
    end
  elseif restMs == -2 and cost < shortThreshold then
    call('SET', window, cost, 'PX', shortWindowMs)
    return shortWindowMs .. ' ok ' .. cost .. ' ' .. cost
  end
end
${STANDING}
if counted + cost >= shortThreshold then
  if shortBlockMs > 0 then
    ${indent(BLOCK, 4)}
  end
  ${indent(DENY_UNTIL_END, 2)}
end
if commit then
  if refused and blockEndsAtMs == 0 then error(refused.err, 0) end
  counted = counted + cost
  ${writeWindow('counted')}
end
${allow('ok')}`;

/** Of a key that is not remembered, a peek says so. A limit with a block still lets in, as only the next call sets the block. */
export const PEEK_WINDOW = /* lua */ `${STANDING}
if shortBlockMs == 0 and counted + cost >= shortThreshold then
  ${indent(DENY_UNTIL_END, 2)}
end
${allow('unknown')}`;

/** Of a call that is not counted. */
export const LOOK_WINDOW = /* lua */ `${READ_WINDOW}
${UNCOUNTED}`;

/** Of a limit that a function has raised above what a log holds: a block stands beside that log. */
export const RAISED = /* lua */ `
local blockValue = call('GET', block)
${denyIfBlocked()}
${WINDOW}`;
