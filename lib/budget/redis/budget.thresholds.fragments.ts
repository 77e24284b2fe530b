import { unreadable } from './budget.fragments.js';

/** Returns whether a sum has reached a percentage of a limit, computed in limbs. */
const REACHES = /* lua */ `
  local function times(sum, factor)
    local text = format('%28s', sum)
    local low = (tonumber(string.sub(text, 20)) or 0) * factor
    local carry = math.floor(low / 1000000000)
    return (tonumber(string.sub(text, 1, 19)) or 0) * factor + carry, low - carry * 1000000000
  end
  local function reaches(usedHigh, usedLow, percent, effective)
    local high, low = times(effective, tonumber(percent))
    return usedHigh > high or (usedHigh == high and usedLow >= low)
  end`;

/**
 * Arms the thresholds of entry i again that are above its current usage. An armed threshold is reported when it
 * is reached. `levels` are its thresholds. `note` is the limit of setLimit that they were checked against.
 */
const REARM = /* lua */ `
  ${REACHES}
  local function rearm(i, levels, note)
    local committed, reserved, credits, archived, highest = match(packed[i], '^1 (%d+) (%d+) (%d+) (%d+) (%d+)')
    local still = 0
    if limitOf[i] ~= 'u' and limitOf[i] ~= '-' then
      local usedHigh, usedLow = times(plus(committed, reserved), 100)
      for percent in gmatch(levels, '%d+') do
        local wasCrossed = tonumber(percent) <= tonumber(highest)
        if wasCrossed and reaches(usedHigh, usedLow, percent, plus(limitOf[i], credits)) then still = percent end
      end
    end
    packed[i] = table.concat({ 1, committed, reserved, credits, archived, still .. note }, ' ')
  end`;

/**
 * Applies changes of setLimit to the thresholds, before the current step counts. A raised limit arms them
 * again.
 */
export const ARM = /* lua */ `
-- Reads: ending, thresholds, format, match, limitOf, plus, gmatch, split, limits, isNewer, setOf, less.
-- Changes: packed.
if ending == 'never l' and thresholds ~= '-' then
  ${REARM}
  local levels, configured = split(thresholds), split(limits)
  for i = 1, #limitOf do
    local counted, percent, seen = match(packed[i], '^(1 %d+ %d+ %d+ %d+) (%d+)=?(%S*)$')
    if not counted then ${unreadable('packed[i]')} end
    if seen == '' then seen = '-' end
    if levels[i] ~= '-' and seen ~= setOf[i] then
      local note = setOf[i] ~= '-' and '=' .. setOf[i] or ''
      local former, limit = seen ~= '-' and seen or configured[i], limitOf[i]
      local isRaised = former ~= 'u' and former ~= '-' and (limit == 'u' or limit == '-' or less(former, limit))
      if isRaised then rearm(i, levels[i], note)
      else packed[i] = counted .. ' ' .. percent .. note end
    end
  end
end`;

/** Arms the thresholds of entry 1 again after a credit. */
export const ARM_CREDITED = /* lua */ `
-- Reads: amount, thresholds, format, match, limitOf, plus, gmatch.
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
-- Reads: thresholds, format, split, match, limitOf, plus, gmatch.
-- Changes: packed, crossed.
if thresholds ~= '-' then
  ${REACHES}
  local lists = {}
  for i, percents in ipairs(split(thresholds)) do
    lists[i] = '-'
    local committed, reserved, credits, archived, highest, note =
      match(packed[i], '^1 (%d+) (%d+) (%d+) (%d+) (%d+)(%S*)$')
    local limit = limitOf[i]
    local effective = limit ~= 'u' and limit ~= '-' and plus(limit, credits)
    if effective and effective ~= '0' then
      local usedHigh, usedLow = times(plus(committed, reserved), 100)
      local reached = {}
      for percent in gmatch(percents, '%d+') do
        if tonumber(percent) > tonumber(highest) and reaches(usedHigh, usedLow, percent, effective) then
          reached[#reached + 1] = percent
          highest = percent
        end
      end
      if #reached > 0 then
        lists[i] = table.concat(reached, ',')
        packed[i] = table.concat({ 1, committed, reserved, credits, archived, highest .. note }, ' ')
      end
    end
  end
  crossed = table.concat(lists, ';')
end`;
