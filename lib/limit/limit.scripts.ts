import { defineScript, type Script } from '../script/define-script.js';
import { NOW_MS } from '../script/fragments.js';
import { DECIDE_IN_WINDOW, forgiveWindowScript, peekWindowScript } from './fixed-window.scripts.js';
import { type LimitOutcome, MAX_CHECKS } from './limit.backend.js';
import {
  answerBlock,
  formatRecord,
  indent,
  NOW_MS_ONCE,
  PARSE_RECORD,
  PRUNE,
  RULES,
  SET_BLOCK,
  WAIT_FOR_ROOM,
  WINDOW_STARTS,
} from './limit.fragments.js';
import { DECIDE_SUCCESS } from './success.scripts.js';
import type { LimitRules } from './limit.policy.js';
import { decodeDone, decodeOutcomes, decodePeek } from './limit.replies.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from './limit.values.js';

// Keys of an identity (seed 003), all with a TTL; of a fixed window see fixed-window.scripts.ts:
//   attempts  ZSET    member: the call's id; score: when it was made, in ms. A call in flight (of a policy that
//                     counts failures) has minus that for its score, which no window reaches.
//   block     String  "<scope> <shortCount> <longCount> <blockMs>[ <reason>]". Its TTL is the truth.
//   seq       String  "<tempFloor> <longFloor> <tempStrikes> <longStrikes> <lastForgiven>": attempts up to a
//                     tier's floor have been served by a block.

/**
 * What a check does: count the call in the log, note it there as in flight, make a failure of what was in flight; give
 * it room for a success, and count that; or count the call in a fixed window; or count nothing, and
 * only look whether there is a block.
 */
export type Stage = 'attempt' | 'enter' | 'confirm' | 'reserve' | 'grant' | 'window' | 'look';

/** What all limits of a call share. */
const START = `
local call = redis.call
local nowMs

local function heal(key, ttlMs)
  if call('PTTL', key) == -1 then call('PEXPIRE', key, ttlMs) end
end`;

const DECIDE = `
-- A call that was sent again is in the set already.
local function scoreOf(attempts)
  return tonumber(call('ZSCORE', attempts, callId) or nil)
end

-- Whether one limit lets the call in, and the reply. Without \`commit\` nothing is counted.
local function decide(commit, attempts, block, seq, cost, stage, ${RULES.join(', ')})
  local state = call('MGET', block, seq)
  local held, record = state[1], state[2]
  local keepMs = (longWindowMs > tempWindowMs and longWindowMs or tempWindowMs) + ${SLACK_MS}
  ${indent(
    answerBlock(
      `false, remainingMs .. ' ' .. held`,
      `call('PEXPIRE', block, remainingMs)`,
      `heal(attempts, keepMs)`,
      `heal(seq, recordTtlMs + remainingMs)`,
    ),
    2,
  )}

  ${indent(NOW_MS_ONCE, 2)}
  ${indent(PARSE_RECORD, 2)}
  if record then heal(seq, recordTtlMs) end
  ${indent(WINDOW_STARTS, 2)}
  local from = tempFrom < longFrom and tempFrom or longFrom
  local isAttempt = stage == 'attempt'
  local flightFrom = ${IN_FLIGHT_MS} - nowMs
  local inFlight = isAttempt and 0 or call('ZCOUNT', attempts, '-inf', '(' .. flightFrom)
  local shortCount = call('ZCOUNT', attempts, '(' .. from, '+inf')
  if call('ZCARD', attempts) > shortCount + inFlight then
    ${indent(PRUNE, 4)}
    if not isAttempt then call('ZREMRANGEBYSCORE', attempts, flightFrom, '(0') end
  end
  local longCount = shortCount
  if tempFrom > from then shortCount = call('ZCOUNT', attempts, '(' .. tempFrom, '+inf') end
  if longFrom > from then longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf') end

  cost = tonumber(cost)
  local tempFull = shortCount + cost >= tempThreshold
  local longFull = longThreshold > 0 and longCount + cost >= longThreshold
  if tempFull and tempBlockMs == 0 and stage ~= 'confirm' and not scoreOf(attempts) then
    ${indent(WAIT_FOR_ROOM, 4)}
    heal(attempts, keepMs)
    return false, waitMs .. ' window ' .. shortCount .. ' ' .. longCount
  end

  local option, score, blocks = 'NX', nowMs, false
  if stage == 'enter' then
    -- The failure that fills a tier may enter: it is the one that blocks. Without a block there has to be room.
    local entering = tempBlockMs == 0 and cost or 0
    local busy = shortCount + inFlight + entering >= tempThreshold
      or longThreshold > 0 and longCount + inFlight >= longThreshold
    if busy and not scoreOf(attempts) then
      heal(attempts, keepMs)
      return false, '${BUSY_RETRY_MS} busy ' .. shortCount .. ' ' .. longCount
    end
    score = -nowMs
  else
    blocks = longFull or tempFull and tempBlockMs > 0
    if stage == 'confirm' then option = 'CH' end
    if (blocks or stage == 'confirm') and (scoreOf(attempts) or -1) >= 0 then
      commit, blocks = false, false
    end
    if tempFloor >= score then score = tempFloor + 1 end
    if longFloor >= score then score = longFloor + 1 end
  end

  -- A foreign value under these names has to fail before the first write, also before that of another limit.
  if blocks then call('GET', block) call('GET', seq) end
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
    if stage ~= 'enter' then shortCount, longCount = shortCount + added, longCount + added end
  end
  -- Until the shorter window is empty if nothing more comes: exact for a call that counts now, else at most.
  if not blocks or not commit then
    return not blocks, (shortCount > 0 and tempWindowMs or 0) .. ' ok ' .. shortCount .. ' ' .. longCount
  end

  ${indent(SET_BLOCK, 2)}
  return false, blockMs .. ' ' .. held
end`;

/** `decide` for what is not counted: a block stands all the same, and a limit of 0 lets nobody in. */
const LOOK = `
local function look(_, block, tempWindowMs, tempThreshold)
  local held = call('GET', block)
  ${indent(answerBlock(`false, remainingMs .. ' ' .. held`, `call('PEXPIRE', block, remainingMs)`), 2)}
  if tempThreshold == 0 then return false, tempWindowMs .. ' window 0 0' end
  return true, '0 ok 0 0'
end`;

/** One limit of a check: with its rules where they stand in the script's text, without where they come as ARGV. */
export interface DecisionShape {
  readonly stage: Stage;
  readonly rules: LimitRules;
}

export type CheckScript = Script<string, string, LimitOutcome[]>;

/** The decisions in Lua: each function takes `commit`, its keys, and these arguments. */
const DECISIONS = {
  log: { name: 'decide', lua: DECIDE, keys: ['attempts', 'block', 'seq'], args: ['cost', 'stage', ...RULES] },
  success: {
    name: 'decideSuccess',
    lua: DECIDE_SUCCESS,
    keys: ['attempts', 'block', 'seq'],
    args: ['cost', 'stage', ...RULES],
  },
  window: {
    name: 'decideInWindow',
    lua: DECIDE_IN_WINDOW,
    keys: ['window', 'block'],
    args: ['cost', 'tempWindowMs', 'tempThreshold'],
  },
  none: { name: 'look', lua: LOOK, keys: ['block'], args: ['tempWindowMs', 'tempThreshold'] },
} as const;

type Decision = (typeof DECISIONS)[keyof typeof DECISIONS];
type DecisionArg = Exclude<Decision['args'][number], 'cost'>;

const decisionOf = (stage: Stage): Decision => DECISIONS[kindOf(stage)];

function kindOf(stage: Stage): keyof typeof DECISIONS {
  if (stage === 'window') return 'window';
  if (stage === 'look') return 'none';
  return stage === 'reserve' || stage === 'grant' ? 'success' : 'log';
}

/** Lua reads no Infinity: that of a limit says no more than that it is not 0. */
const asNumber = (rule: number): number => (rule === Infinity ? -1 : rule);

/** The nth limit of a call: how the script asks it. */
interface LimitCall {
  readonly decision: Decision;
  readonly values: string;
}

function limitCall(decision: Decision, n: number, valueOf: (arg: DecisionArg) => string): LimitCall {
  const values = decision.args.map((arg) => (arg === 'cost' ? `cost${n}` : valueOf(arg)));
  return { decision, values: [...decision.keys.map((key) => key + n), ...values].join(', ') };
}

/**
 * The decision about a call that is counted against so many limits: against all, or, if some deny it, against
 * those alone. One limit replies at once; several are asked first and counted then.
 */
function checkScript(name: string, limits: readonly LimitCall[], args: readonly string[]): CheckScript {
  const [only] = limits;
  const ask = (commit: string, { decision, values }: LimitCall): string =>
    `${decision.name}(${commit}, ${values})`;
  const lua =
    only && limits.length === 1
      ? `local _, reply = ${ask('true', only)}\nreturn reply`
      : `
local limits = {
${limits.map((limit) => `  function(commit) return ${ask('commit', limit)} end,`).join('\n')}
}
local allowed, answers, replies = true, {}, {}
for i, limit in ipairs(limits) do
  answers[i], replies[i] = limit(false)
  allowed = allowed and answers[i]
end
for i, limit in ipairs(limits) do
  if answers[i] == allowed then
    local _, reply = limit(true)
    replies[i] = reply
  end
end
return table.concat(replies, ';')`;
  const decisions = new Set(limits.map(({ decision }) => decision.lua));
  return defineScript({
    name,
    keys: limits.flatMap(({ decision }, i) => decision.keys.map((key) => key + String(i + 1))),
    args: ['callId', ...args],
    lua: [START, ...decisions, lua].map((part) => part.trim()).join('\n\n'),
    decode: decodeOutcomes,
  });
}

/** The rules come with each call: for policies that are known only with it. */
function dynamicScript(name: string, decisions: readonly Decision[]): CheckScript {
  const limits = decisions.map((decision, i) =>
    limitCall(decision, i + 1, (arg) => (arg === 'stage' ? `stage${i + 1}` : `tonumber(${arg}${i + 1})`)),
  );
  return checkScript(
    name,
    limits,
    decisions.flatMap(({ args }, i) => args.map((arg) => arg + String(i + 1))),
  );
}

/** For sliding logs: one script for each number of limits. */
export const checkScripts: readonly CheckScript[] = Array.from({ length: MAX_CHECKS }, (_, i) =>
  dynamicScript(`limit-check-${i + 1}`, Array<Decision>(i + 1).fill(DECISIONS.log)),
);

const mixedCheckScripts = new Map<string, CheckScript>();

/** Where not all limits are plain logs: one script for each sequence of kinds that occurs. */
function mixedCheckScript(shapes: readonly DecisionShape[]): CheckScript {
  const sequence = shapes.map(({ stage }) => kindOf(stage)[0]).join('');
  let script = mixedCheckScripts.get(sequence);
  if (!script) {
    const decisions = shapes.map(({ stage }) => decisionOf(stage));
    script = dynamicScript(`limit-check-${sequence}`, decisions);
    mixedCheckScripts.set(sequence, script);
  }
  return script;
}

/** The script that takes the rules of these limits as arguments. */
export function dynamicCheckScript(shapes: readonly DecisionShape[]): CheckScript {
  const script = checkScripts[shapes.length - 1];
  if (!script) throw new RangeError(`a call has 1 to ${MAX_CHECKS} limits, got ${shapes.length}`);
  return shapes.some(({ stage }) => kindOf(stage) !== 'log') ? mixedCheckScript(shapes) : script;
}

/** What it takes as arguments for the nth limit of a call. */
export function dynamicArgs(
  { stage, rules }: DecisionShape,
  cost: number,
  n: number,
): Record<string, string | number> {
  const args: Record<string, string | number> = {};
  for (const arg of decisionOf(stage).args)
    args[arg + String(n)] = arg === 'cost' ? cost : arg === 'stage' ? stage : asNumber(rules[arg]);
  return args;
}

/** The rules stand in the script's text: fewer bytes a call, and nothing to parse. For policies known at boot. */
export function fixedCheckScript(shapes: readonly DecisionShape[]): CheckScript {
  const limits = shapes.map(({ stage, rules }, i) =>
    limitCall(decisionOf(stage), i + 1, (arg) =>
      arg === 'stage' ? `'${stage}'` : String(asNumber(rules[arg])),
    ),
  );
  return checkScript(
    'limit-check-fixed',
    limits,
    shapes.map((_, i) => `cost${i + 1}`),
  );
}

/** Reads only: what a check would find. Replies like one, with the time until the shorter window is empty. */
export const peekScript = defineScript({
  name: 'limit-peek',
  keys: ['attempts', 'block', 'seq'],
  args: RULES,
  lua: `
local call, cost = redis.call, 1
tempWindowMs, tempThreshold, longThreshold = tonumber(tempWindowMs), tonumber(tempThreshold), tonumber(longThreshold)

local held = call('GET', block)
${answerBlock(`remainingMs .. ' ' .. held`).trim()}
${NOW_MS}
local record = call('GET', seq)
${PARSE_RECORD}
${WINDOW_STARTS}
local shortCount = call('ZCOUNT', attempts, '(' .. tempFrom, '+inf')
local longCount = call('ZCOUNT', attempts, '(' .. longFrom, '+inf')
if tonumber(tempBlockMs) == 0 and shortCount + cost >= tempThreshold then
  ${indent(WAIT_FOR_ROOM, 2)}
  return waitMs .. ' window ' .. shortCount .. ' ' .. longCount
end
local resetMs = 0
if shortCount > 0 then
  resetMs = math.min(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] - nowMs, 0) + tempWindowMs
end
return resetMs .. ' ok ' .. shortCount .. ' ' .. longCount`,
  decode: decodePeek,
});

/** Takes a call back; with \`forget\` "1" the failures before it as well, unless a block stands. */
export const withdrawScript = defineScript({
  name: 'limit-withdraw',
  keys: ['attempts', 'block', 'seq'],
  args: ['callId', 'cost', 'forget'],
  lua: `
local members = {callId}
for i = 2, tonumber(cost) do members[i] = callId .. ':' .. i end
local blocked = redis.call('GET', block) and redis.call('PTTL', block) ~= 0
redis.call('ZREM', attempts, unpack(members))
if forget == '1' and not blocked then
  redis.call('ZREMRANGEBYSCORE', attempts, 0, '+inf')
  redis.call('DEL', seq)
end
return 1`,
  decode: decodeDone('limit-withdraw'),
});

/** Removes the newest attempts; what is in flight stays. */
export const forgiveScript = defineScript({
  name: 'limit-forgive',
  keys: ['attempts', 'seq'],
  args: ['callId', 'count', 'recordTtlMs'],
  lua: `
local record = redis.call('GET', seq)
${PARSE_RECORD}
if forgiven == callId then return 1 end
local newest = math.min(redis.call('ZCOUNT', attempts, 0, '+inf'), tonumber(count))
if newest == 0 then return 1 end
redis.call('ZREMRANGEBYRANK', attempts, -newest, -1)
if redis.call('PTTL', seq) < 0 then
  redis.call('SET', seq, ${formatRecord('callId')}, 'PX', recordTtlMs)
else
  redis.call('SET', seq, ${formatRecord('callId')}, 'KEEPTTL')
end
return 1`,
  decode: decodeDone('limit-forgive'),
});

/** `counted`: attempts or window. */
export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['counted', 'block', 'seq'],
  args: [],
  lua: `
redis.call('DEL', counted, block, seq)
return 1`,
  decode: decodeDone('limit-reset'),
});

/** Blocks by hand. The reason is percent-encoded. */
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

/** Ends a block. Its tier's floor was set with it: that window begins afresh. */
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
