import { defineScript, type Script } from '../../script/define-script.js';
import { inLines, NOW_MS } from '../../script/fragments.js';
import { DECIDE_IN_WINDOW, forgiveWindowScript, peekWindowScript } from './fixed-window.scripts.js';
import { type BackendDecision, MAX_CHECKS, type LimitRules } from '../limit.backend.js';
import {
  denyIfBlocked,
  formatPenalties,
  indent,
  NOW_MS_ONCE,
  PARSE_PENALTIES,
  parsePenalties,
  PRUNE,
  RULES,
  SET_BLOCK,
  WAIT_FOR_ROOM,
  WINDOW_STARTS,
} from './limit.fragments.js';
import { DECIDE_SUCCESS } from './success.scripts.js';
import { decodeDone, decodeDecisions, decodePeek } from './limit.replies.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from '../limit.times.js';

// The keys of an identity, all with a TTL. fixed-window.scripts.ts has those of a fixed window.
//   attempts   ZSET    The member is the id of a call, the score is its time in ms. A call in flight has its negated time as
//                      score, so that no window contains it.
//   block      String  "<scope> <shortCount> <longCount> <blockMs>[ <reason>]". The block lasts as long as its TTL.
//   penalties  String  "<shortFloor> <longFloor> <shortStrikes> <longStrikes> <lastForgiven>". Attempts up to a tier's floor
//                      no longer count for the tier, as a block has been set for them. Strikes are the blocks of a tier. In
//                      Redis the key has the name `seq`.

/**
 * The way in which a script decides about a call:
 *
 * - `attempt` counts it in the log.
 * - `enter` keeps it as in flight, for a policy that counts failures. `confirm` counts it as a failure.
 * - `reserve` keeps it as in flight, for a policy that counts successes. `grant` counts it as a success.
 * - `window` counts it in a fixed window.
 * - `look` counts nothing. It denies only if there is a block, or if the limit is 0.
 */
export type CheckMode = 'attempt' | 'enter' | 'confirm' | 'reserve' | 'grant' | 'window' | 'look';

/** The beginning of each script, shared by all limits of a call. */
const START = `
local call = redis.call`;

/** What limits share that count a call. */
const START_COUNTING = `
local nowMs

local function heal(key, ttlMs)
  if call('PTTL', key) == -1 then call('PEXPIRE', key, ttlMs) end
end`;

const DECIDE = `
-- Returns the score of the call, if it is in the set: it is in flight, or the Redis client has sent the command twice.
local function scoreOf(attempts)
  return tonumber(call('ZSCORE', attempts, callId) or nil)
end

-- Returns whether the limit allows the call, and the reply. Without \`commit\` nothing is counted.
local function decide(commit, attempts, block, penalties, cost, mode,
  ${inLines(RULES)})
  local state = call('MGET', block, penalties)
  local blockValue, penaltiesValue = state[1], state[2]
  local keepMs = (longWindowMs > shortWindowMs and longWindowMs or shortWindowMs) + ${SLACK_MS}
  ${indent(
    denyIfBlocked(
      `false, remainingMs .. ' ' .. blockValue`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(attempts, keepMs)`,
      `heal(penalties, penaltiesTtlMs + remainingMs)`,
    ),
    2,
  )}

  ${indent(NOW_MS_ONCE, 2)}
  ${indent(PARSE_PENALTIES, 2)}
  if penaltiesValue then heal(penalties, penaltiesTtlMs) end
  ${indent(WINDOW_STARTS, 2)}
  local from = shortFrom < longFrom and shortFrom or longFrom
  local isAttempt = mode == 'attempt'
  local flightFrom = ${IN_FLIGHT_MS} - nowMs
  local inFlight = isAttempt and 0 or call('ZCOUNT', attempts, '-inf', '(' .. flightFrom)
  local shortCount = call('ZCOUNT', attempts, '(' .. from, '+inf')
  if call('ZCARD', attempts) > shortCount + inFlight then
    ${indent(PRUNE, 4)}
    if not isAttempt then call('ZREMRANGEBYSCORE', attempts, flightFrom, '(0') end
  end
  local longCount = shortCount
  if shortFrom > from then shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf') end
  if longFrom > from then longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf') end

  cost = tonumber(cost)
  local shortFull = shortCount + cost >= shortThreshold
  local longFull = longThreshold > 0 and longCount + cost >= longThreshold
  if shortFull and shortBlockMs == 0 and mode ~= 'confirm' and not scoreOf(attempts) then
    ${indent(WAIT_FOR_ROOM, 4)}
    heal(attempts, keepMs)
    return false, waitMs .. ' window ' .. shortCount .. ' ' .. longCount
  end

  local option, score, blocks = 'NX', nowMs, false
  if mode == 'enter' then
    -- With a block, the call that would fill a tier may enter: if it fails, it sets the block. Without one it needs
    -- room.
    local entering = shortBlockMs == 0 and cost or 0
    local busy = shortCount + inFlight + entering >= shortThreshold
      or longThreshold > 0 and longCount + inFlight >= longThreshold
    if busy and not scoreOf(attempts) then
      heal(attempts, keepMs)
      return false, '${BUSY_RETRY_MS} busy ' .. shortCount .. ' ' .. longCount
    end
    score = -nowMs
  else
    blocks = longFull or shortFull and shortBlockMs > 0
    if mode == 'confirm' then option = 'CH' end
    if (blocks or mode == 'confirm') and (scoreOf(attempts) or -1) >= 0 then
      commit, blocks = false, false
    end
    if shortFloor >= score then score = shortFloor + 1 end
    if longFloor >= score then score = longFloor + 1 end
  end

  -- If these keys hold another type, the script must fail before the first write of any limit.
  if blocks then call('GET', block) call('GET', penalties) end
  if commit then
    local added
    if cost == 1 then
      added = call('ZADD', attempts, option, score, callId)
    else
      local members = {score, callId}
      for i = 2, cost do
        members[2 * i - 1] = score
        members[2 * i] = callId .. ':' .. i
      end
      added = call('ZADD', attempts, option, unpack(members))
    end
    call('PEXPIRE', attempts, keepMs)
    if mode ~= 'enter' then shortCount, longCount = shortCount + added, longCount + added end
  end
  -- The time until the short window is empty: exact if this call was counted, otherwise an upper bound.
  if not blocks or not commit then
    return not blocks, (shortCount > 0 and shortWindowMs or 0) .. ' ok ' .. shortCount .. ' ' .. longCount
  end

  ${indent(SET_BLOCK, 2)}
  return false, blockMs .. ' ' .. blockValue
end`;

/** The decider of calls that are not counted. A block denies them, and so does a limit of 0. */
const LOOK = `
local function look(_, block, shortWindowMs, shortThreshold)
  local blockValue = call('GET', block)
  ${indent(denyIfBlocked(`false, remainingMs .. ' ' .. blockValue`, `call('PEXPIRE', block, remainingMs)`), 2)}
  if shortThreshold == 0 then return false, shortWindowMs .. ' window 0 0' end
  return true, '0 ok 0 0'
end`;

/** The mode and the rules of one limit of a check. */
export interface CheckShape {
  readonly mode: CheckMode;
  readonly rules: LimitRules;
}

export type CheckScript = Script<string, string, BackendDecision[]>;

/** The Lua functions that decide. Each takes `commit`, its keys, and then its arguments. */
const DECIDERS = {
  log: {
    name: 'decide',
    lua: DECIDE,
    keys: ['attempts', 'block', 'penalties'],
    args: ['cost', 'mode', ...RULES],
  },
  success: {
    name: 'decideSuccess',
    lua: DECIDE_SUCCESS,
    keys: ['attempts', 'block', 'penalties'],
    args: ['cost', 'mode', ...RULES],
  },
  window: {
    name: 'decideInWindow',
    lua: DECIDE_IN_WINDOW,
    keys: ['window', 'block'],
    args: ['cost', 'shortWindowMs', 'shortThreshold'],
  },
  none: { name: 'look', lua: LOOK, keys: ['block'], args: ['shortWindowMs', 'shortThreshold'] },
} as const;

type Decider = (typeof DECIDERS)[keyof typeof DECIDERS];
type DeciderArg = Exclude<Decider['args'][number], 'cost'>;

const deciderOf = (mode: CheckMode): Decider => DECIDERS[kindOf(mode)];

function kindOf(mode: CheckMode): keyof typeof DECIDERS {
  if (mode === 'window') return 'window';
  if (mode === 'look') return 'none';
  return mode === 'reserve' || mode === 'grant' ? 'success' : 'log';
}

/** Lua cannot read Infinity. The decider of an unlimited call only asks whether the limit is 0, so -1 stands for it. */
const asNumber = (rule: number): number => (rule === Infinity ? -1 : rule);

/** A limit in the text of a script. */
interface LimitCall {
  readonly decider: Decider;
  /** The arguments of the call of its function, behind `commit`. */
  readonly values: string;
}

function limitCall(decider: Decider, n: number, valueOf: (arg: DeciderArg) => string): LimitCall {
  const values = decider.args.map((arg) => (arg === 'cost' ? `cost${n}` : valueOf(arg)));
  return { decider, values: inLines([...decider.keys.map((key) => key + n), ...values]) };
}

/**
 * Returns the script that decides about one call against several limits. If all of them allow the call, all count it. If some
 * deny it, those that allow it do not count it, and those that deny it may set their block. So several limits decide first
 * without `commit`, and are then asked again with it.
 */
function checkScript(name: string, limits: readonly LimitCall[], args: readonly string[]): CheckScript {
  const [only] = limits;
  const ask = (commit: string, { decider, values }: LimitCall): string =>
    `${decider.name}(${commit}, ${values})`;
  const lua =
    only && limits.length === 1
      ? `local _, reply = ${ask('true', only)}\nreturn reply`
      : `
local limits = {
${limits.map((limit) => `  function(commit) return ${ask('commit', limit)} end,`).join('\n')}
}
local allAllow, allows, replies = true, {}, {}
for i, limit in ipairs(limits) do
  allows[i], replies[i] = limit(false)
  allAllow = allAllow and allows[i]
end
for i, limit in ipairs(limits) do
  if allows[i] == allAllow then
    local _, reply = limit(true)
    replies[i] = reply
  end
end
return table.concat(replies, ';')`;
  const deciders = new Set(limits.map(({ decider }) => decider.lua));
  const counts = limits.some(({ decider }) => decider !== DECIDERS.none);
  return defineScript({
    name,
    keys: limits.flatMap(({ decider }, i) => decider.keys.map((key) => key + String(i + 1))),
    args: ['callId', ...args],
    lua: [START, counts ? START_COUNTING : '', ...deciders, lua].map((part) => part.trim()).join('\n\n'),
    decode: decodeDecisions,
  });
}

/** Returns a script that gets the rules as arguments, for policies that are not known at boot. */
function dynamicScript(name: string, deciders: readonly Decider[]): CheckScript {
  const limits = deciders.map((decider, i) =>
    limitCall(decider, i + 1, (arg) => (arg === 'mode' ? `mode${i + 1}` : `tonumber(${arg}${i + 1})`)),
  );
  return checkScript(
    name,
    limits,
    deciders.flatMap(({ args }, i) => args.map((arg) => arg + String(i + 1))),
  );
}

/** The scripts for sliding logs, one for each number of limits. */
export const checkScripts: readonly CheckScript[] = Array.from({ length: MAX_CHECKS }, (_, i) =>
  dynamicScript(`limit-check-${i + 1}`, Array<Decider>(i + 1).fill(DECIDERS.log)),
);

const mixedCheckScripts = new Map<string, CheckScript>();

/**
 * Returns the script for limits that are not all sliding logs of attempts or failures. There is one for each sequence
 * of kinds.
 */
function mixedCheckScript(shapes: readonly CheckShape[]): CheckScript {
  const sequence = shapes.map(({ mode }) => kindOf(mode)[0]).join('');
  let script = mixedCheckScripts.get(sequence);
  if (!script) {
    const deciders = shapes.map(({ mode }) => deciderOf(mode));
    script = dynamicScript(`limit-check-${sequence}`, deciders);
    mixedCheckScripts.set(sequence, script);
  }
  return script;
}

/** Returns the script that takes the rules of these limits as arguments. */
export function dynamicCheckScript(shapes: readonly CheckShape[]): CheckScript {
  const script = checkScripts[shapes.length - 1];
  if (!script) throw new RangeError(`a call has 1 to ${MAX_CHECKS} limits, got ${shapes.length}`);
  return shapes.some(({ mode }) => kindOf(mode) !== 'log') ? mixedCheckScript(shapes) : script;
}

/** Returns the arguments of the script of `dynamicCheckScript` for the nth limit of a call. */
export function dynamicArgs(
  { mode, rules }: CheckShape,
  cost: number,
  n: number,
): Record<string, string | number> {
  const args: Record<string, string | number> = {};
  for (const arg of deciderOf(mode).args)
    args[arg + String(n)] = arg === 'cost' ? cost : arg === 'mode' ? mode : asNumber(rules[arg]);
  return args;
}

/** Returns a script that has the rules in its text. So a command has fewer bytes, and the script has no numbers to parse. */
export function staticCheckScript(shapes: readonly CheckShape[]): CheckScript {
  const limits = shapes.map(({ mode, rules }, i) =>
    limitCall(deciderOf(mode), i + 1, (arg) => (arg === 'mode' ? `'${mode}'` : String(asNumber(rules[arg])))),
  );
  return checkScript(
    'limit-check-static',
    limits,
    shapes.map((_, i) => `cost${i + 1}`),
  );
}

/** Replies as a check of cost 1 would, and writes nothing. An allowed reply has the exact time until the short window is empty. */
export const peekScript = defineScript({
  name: 'limit-peek',
  keys: ['attempts', 'block', 'penalties'],
  args: RULES,
  lua: `
local call, cost = redis.call, 1
shortWindowMs, shortThreshold = tonumber(shortWindowMs), tonumber(shortThreshold)
longThreshold = tonumber(longThreshold)

local blockValue = call('GET', block)
${denyIfBlocked(`remainingMs .. ' ' .. blockValue`).trim()}
${NOW_MS}
local penaltiesValue = call('GET', penalties)
${parsePenalties('shortFloor', 'longFloor')}
${WINDOW_STARTS}
local shortCount = call('ZCOUNT', attempts, '(' .. shortFrom, '+inf')
local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
if tonumber(shortBlockMs) == 0 and shortCount + cost >= shortThreshold then
  ${indent(WAIT_FOR_ROOM, 2)}
  return waitMs .. ' window ' .. shortCount .. ' ' .. longCount
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + shortWindowMs
end
return resetMs .. ' ok ' .. shortCount .. ' ' .. longCount`,
  decode: decodePeek,
});

/** Takes a call back. With `forget` "1" it also removes the failures before it, unless there is a block. */
export const withdrawScript = defineScript({
  name: 'limit-withdraw',
  keys: ['attempts', 'block', 'penalties'],
  args: ['callId', 'cost', 'forget'],
  lua: `
local members = {callId}
for i = 2, tonumber(cost) do members[i] = callId .. ':' .. i end
local blocked = redis.call('GET', block) and redis.call('PTTL', block) ~= 0
redis.call('ZREM', attempts, unpack(members))
if forget == '1' and not blocked then
  redis.call('ZREMRANGEBYSCORE', attempts, 0, '+inf')
  redis.call('DEL', penalties)
end
return 1`,
  decode: decodeDone('limit-withdraw'),
});

/** Removes the newest attempts. Calls in flight stay. */
export const forgiveScript = defineScript({
  name: 'limit-forgive',
  keys: ['attempts', 'penalties'],
  args: ['callId', 'count', 'penaltiesTtlMs'],
  lua: `
local penaltiesValue = redis.call('GET', penalties)
${PARSE_PENALTIES}
if forgiven == callId then return 1 end
local newest = math.min(redis.call('ZCOUNT', attempts, 0, '+inf'), tonumber(count))
if newest == 0 then return 1 end
redis.call('ZREMRANGEBYRANK', attempts, -newest, -1)
if redis.call('PTTL', penalties) < 0 then
  redis.call('SET', penalties, ${formatPenalties('callId')}, 'PX', penaltiesTtlMs)
else
  redis.call('SET', penalties, ${formatPenalties('callId')}, 'KEEPTTL')
end
return 1`,
  decode: decodeDone('limit-forgive'),
});

/** Removes everything of an identity. The key `counted` is its attempts or its fixed window. */
export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['counted', 'block', 'penalties'],
  args: [],
  lua: `
redis.call('DEL', counted, block, penalties)
return 1`,
  decode: decodeDone('limit-reset'),
});

/** Sets a block by hand. The reason is percent-encoded. */
export const blockScript = defineScript({
  name: 'limit-block',
  keys: ['block'],
  args: ['blockMs', 'reason'],
  lua: `
redis.call('GET', block)
redis.call('SET', block, 'manual 0 0 ' .. blockMs .. ' ' .. reason, 'PX', blockMs)
return 1`,
  decode: decodeDone('limit-block'),
});

/** Ends a block. The floor of its tier was set together with the block, so the window of that tier begins afresh. */
export const unblockScript = defineScript({
  name: 'limit-unblock',
  keys: ['block'],
  args: [],
  lua: `
redis.call('GET', block)
redis.call('DEL', block)
return 1`,
  decode: decodeDone('limit-unblock'),
});

export const limitScripts: readonly Script[] = [
  ...checkScripts,
  peekScript,
  peekWindowScript,
  withdrawScript,
  forgiveScript,
  forgiveWindowScript,
  resetScript,
  blockScript,
  unblockScript,
] as readonly Script[];
