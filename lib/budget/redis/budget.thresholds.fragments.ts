import { effective } from './budget.fragments.js';

/**
 * Finds the thresholds that a step reaches which has added this much. Stores them in `crossed`, as one list for each entry
 * joined by ';', and the highest one in the counter: with the limit and the credits that it was checked against, where these
 * are not those of the options. A raised limit and a credit arm the thresholds again that were not reached before the step.
 */
export const findCrossed = (added: string): string => /* lua */ `
-- Reads: thresholds, split, limits, match, limitOf, gmatch.
-- Changes: packed, crossed.
if thresholds ~= '-' then
  local function wholeOf(limit, credits)
    return limit == 'u' and math.huge or ${effective('limit', 'credits')}
  end
  -- Each product is exact where it decides.
  local function reaches(used, percent, whole)
    local hundreds = math.floor(whole / 100)
    return whole > 0 and whole < math.huge
      and used >= percent * hundreds + math.ceil(percent * (whole - 100 * hundreds) / 100)
  end
  local lists, configured = {}, split(limits)
  for i, percents in ipairs(split(thresholds)) do
    lists[i] = '-'
    if percents ~= '-' then
      local sums, committed, reserved, credits, highest, seenLimit, seenCredits =
        match(packed[i], '^(1 (%d+) (%d+) (%d+) %d+) (%d+)=?(%w*)%+?(%d*)$')
      local used, whole = committed + reserved, wholeOf(limitOf[i], credits)
      if seenLimit == '' then seenLimit = configured[i] end
      local isRaised = whole > wholeOf(seenLimit, tonumber(seenCredits) or 0)
      local reached, last = {}, isRaised and 0 or highest
      for percent in gmatch(percents, '%d+') do
        local isOld = tonumber(percent) <= tonumber(highest)
          and (not isRaised or reaches(used - ${added}, percent, whole))
        if isOld or reaches(used, percent, whole) then last = math.max(last, percent) end
        if not isOld and reaches(used, percent, whole) then reached[#reached + 1] = percent end
      end
      if #reached > 0 then lists[i] = table.concat(reached, ',') end
      local set = limitOf[i] ~= configured[i] and limitOf[i] or ''
      packed[i] = sums .. ' ' .. last .. (set .. credits ~= '0' and '=' .. set .. '+' .. credits or '')
    end
  end
  crossed = table.concat(lists, ';')
end`;
