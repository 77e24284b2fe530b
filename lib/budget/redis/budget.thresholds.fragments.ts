import { effective, unreadable } from './budget.fragments.js';

/** Returns whether a sum has reached a percentage of a limit. Each product is exact where it decides. */
const REACHES = /* lua */ `
  local function reaches(used, percent, whole)
    local hundreds = math.floor(whole / 100)
    return used >= percent * hundreds + math.ceil(percent * (whole - 100 * hundreds) / 100)
  end`;

/**
 * Arms the thresholds of entry i again that are above its current usage. An armed threshold is reported when it
 * is reached. `levels` are its thresholds. `note` is the limit of setLimit that they were checked against.
 */
const REARM = /* lua */ `
  ${REACHES}
  local function rearm(i, levels, note)
    local counted, committed, reserved, credits, highest = match(packed[i], '^(1 (%d+) (%d+) (%d+) %d+) (%d+)')
    local still = 0
    if limitOf[i] ~= 'u' then
      for percent in gmatch(levels, '%d+') do
        local wasCrossed = tonumber(percent) <= tonumber(highest)
        if wasCrossed and reaches(committed + reserved, percent, ${effective('limitOf[i]', 'credits')}) then
          still = percent
        end
      end
    end
    packed[i] = counted .. ' ' .. still .. note
  end`;

/**
 * Applies changes of setLimit to the thresholds, before the current step counts. A raised limit arms them
 * again. A limit of setLimit that equals the configured one is no change.
 */
export const ARM = /* lua */ `
-- Reads: ending, thresholds, match, limitOf, gmatch, split, limits, isNewer.
-- Changes: packed.
if ending == 'never l' and thresholds ~= '-' then
  ${REARM}
  local levels, configured = split(thresholds), split(limits)
  for i = 1, #limitOf do
    local sums, percent, seen = match(packed[i], '^(1 %d+ %d+ %d+ %d+) (%d+)=?(%S*)$')
    if not sums then ${unreadable('packed[i]')} end
    local former, limit = seen ~= '' and seen or configured[i], limitOf[i]
    if levels[i] ~= '-' and former ~= limit then
      local note = limit ~= configured[i] and '=' .. limit or ''
      local isRaised = former ~= 'u' and (limit == 'u' or tonumber(former) < tonumber(limit))
      if isRaised then rearm(i, levels[i], note)
      else packed[i] = sums .. ' ' .. percent .. note end
    end
  end
end`;

/** Arms the thresholds of entry 1 again after a credit. */
export const ARM_CREDITED = /* lua */ `
-- Reads: amount, thresholds, match, limitOf, gmatch.
-- Changes: packed.
if amount ~= '0' and thresholds ~= '-' then
  ${REARM}
  rearm(1, thresholds, match(packed[1], '=%S+$') or '')
end`;

/**
 * Finds the armed thresholds that are now reached. Stores them in `crossed`, as one list for each entry joined by
 * ';'. Stores the highest one in the counter.
 */
export const CROSS = /* lua */ `
-- Reads: thresholds, split, match, limitOf, gmatch.
-- Changes: packed, crossed.
if thresholds ~= '-' then
  ${REACHES}
  local lists = {}
  for i, percents in ipairs(split(thresholds)) do
    lists[i] = '-'
    local sums, committed, reserved, credits, highest, note =
      match(packed[i], '^(1 (%d+) (%d+) (%d+) %d+) (%d+)(%S*)$')
    local whole = limitOf[i] ~= 'u' and ${effective('limitOf[i]', 'credits')} or 0
    if whole > 0 then
      local reached = {}
      for percent in gmatch(percents, '%d+') do
        if tonumber(percent) > tonumber(highest) and reaches(committed + reserved, percent, whole) then
          reached[#reached + 1] = percent
          highest = percent
        end
      end
      if #reached > 0 then
        lists[i] = table.concat(reached, ',')
        packed[i] = sums .. ' ' .. highest .. note
      end
    end
  end
  crossed = table.concat(lists, ';')
end`;
