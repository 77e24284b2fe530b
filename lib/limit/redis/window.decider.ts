import { denyIfBlocked, heal, indent, NOW_MS_ONCE } from './limit.fragments.js';

/**
 * Sets `count`, `endsAtMs`, `last` and `forgiven` from `value`. If no window is open, they are 0, nil, '' and ''.
 */
export const PARSE_WINDOW = /* lua */ `
local count, endsAtMs, last, forgiven = 0, nil, '', ''
if value then
  local counted, ends, by, undone = string.match(value, '^(%d+) (%d+) ([%w_-]*) ([%w_-]*)$')
  if not counted then error('SYNCGUARD_FOREIGN the window is not ours', 0) end
  if tonumber(ends) > nowMs then
    count, endsAtMs, last, forgiven = tonumber(counted), tonumber(ends), by, undone
  end
end`;

/** Writes the window. Sets the TTL to the rest of the window, also if the key had lost its TTL. */
export const writeWindow = (last: string, forgiven: string): string =>
  `call('SET', window, string.format('%.0f %.0f %s %s', count, endsAtMs, ${last}, ${forgiven}),\n  'PX', endsAtMs - nowMs)`;

/**
 * Counts a call in a fixed window, if it fits. A denied call waits until the window ends. A replied time is never longer
 * than a window, even after the clock has stepped back.
 */
export const WINDOW = /* lua */ `
local blockValue, value = call('GET', block), call('GET', window)
${denyIfBlocked(heal('window', 'shortWindowMs'))}
${NOW_MS_ONCE}
${PARSE_WINDOW}
endsAtMs = endsAtMs or nowMs + shortWindowMs
local leftMs = math.min(endsAtMs - nowMs, shortWindowMs)
if last ~= callId then
  if count + cost >= shortThreshold then
    ${indent(heal('window', 'endsAtMs - nowMs'), 4)}
    return leftMs .. ' window ' .. count .. ' ' .. count
  end
  if commit then
    count = count + cost
    ${indent(writeWindow('callId', 'forgiven'), 4)}
  end
end
return (count > 0 and leftMs or 0) .. ' ok ' .. count .. ' ' .. count`;
