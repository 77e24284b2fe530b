import { denyIfBlocked, heal, indent, NOW_MS_ONCE } from './limit.fragments.js';

/**
 * Sets `count`, `endsAtMs`, `last`, `forgiven` and `windowMs` from `value`. If no window is open, they are 0, nil, '', '' and
 * nil. `fullEndMs` is the end of a window that begins now: if the clock has stepped back, the open window ends then.
 */
export const PARSE_WINDOW = /* lua */ `
local count, endsAtMs, last, forgiven, windowMs, fullEndMs = 0, nil, '', '', nil, nil
if value then
  local counted, ends, by, undone, length = string.match(value, '^(%d+) (%d+) ([%w_-]*) ([%w_-]*) (%d+)$')
  if not counted then error('SYNCGUARD_FOREIGN the window is not ours', 0) end
  if tonumber(ends) > nowMs then
    count, endsAtMs, last, forgiven, windowMs = tonumber(counted), tonumber(ends), by, undone, tonumber(length)
    fullEndMs = nowMs + windowMs
  end
end`;

/** Writes the window. Sets the TTL to the rest of the window, also if the key had lost its TTL. */
export const writeWindow = (last: string, forgiven: string): string =>
  `call('SET', window,\n  string.format('%.0f %.0f %s %s %.0f', count, endsAtMs, ${last}, ${forgiven}, windowMs), 'PX', endsAtMs - nowMs)`;

/** Denies the call until the window ends. */
const DENY_UNTIL_END = /* lua */ `
${heal('window', 'endsAtMs - nowMs')}
return leftMs .. ' window ' .. count .. ' ' .. count`;

/** Denies the call by a block. After it the window has no attempts. */
const BLOCK = /* lua */ `
if shortBlockMs > 0 then
  if not commit then return '1 temp' end
  blockValue = string.format('temp %.0f %.0f %.0f', count + cost, count + cost, shortBlockMs)
  count = 0
  ${indent(writeWindow(`''`, 'forgiven'), 2)}
  call('SET', block, blockValue, 'PX', shortBlockMs)
  return shortBlockMs .. ' ' .. blockValue
end`;

/**
 * Counts a call in a fixed window, if it fits. A denied call sets the block of the policy, or waits until the window ends.
 * A replied time is never longer than the window of the policy, which may have changed meanwhile.
 */
const decide = (empty: 'ok' | 'unknown', full: string): string => /* lua */ `
local blockValue, value = call('GET', block), call('GET', window)
${denyIfBlocked(heal('window', 'shortWindowMs'))}
${NOW_MS_ONCE}
${PARSE_WINDOW}
if endsAtMs and endsAtMs > fullEndMs then
  endsAtMs = fullEndMs
  if commit then
    ${indent(writeWindow('last', 'forgiven'), 4)}
  end
end
windowMs = windowMs or shortWindowMs
endsAtMs = endsAtMs or nowMs + windowMs
local leftMs = math.min(endsAtMs - nowMs, shortWindowMs)
if last ~= callId then
  if count + cost >= shortThreshold${full}
  end
  if commit then
    count = count + cost
    ${indent(writeWindow('callId', 'forgiven'), 4)}
  end
end
if count == 0 then return '0 ${empty} 0 0' end
return leftMs .. ' ok ' .. count .. ' ' .. count`;

export const WINDOW = decide(
  'ok',
  ` then
    ${indent(BLOCK, 4)}
    ${indent(DENY_UNTIL_END, 4)}`,
);

/** Of a key that is not remembered, a peek says so. A limit with a block still lets in, as only the next call sets the block. */
export const PEEK_WINDOW = decide(
  'unknown',
  ` and shortBlockMs == 0 then
    ${indent(DENY_UNTIL_END, 4)}`,
);
