import { foreignValue } from '../redis/redis.errors.js';
import { defineScript, type Script, unexpectedReply } from '../script/define-script.js';
import { type LimitOutcome, MAX_CHECKS } from './limit.backend.js';
import type { LimitRules } from './limit.policy.js';
import { NOW_MS } from '../script/fragments.js';
import { BUSY_RETRY_MS, IN_FLIGHT_MS, SLACK_MS } from './limit.values.js';

// Keys of an identity (seed 003), all with a TTL:
//   attempts  ZSET    member: the call's id; score: when it was made, in ms. A call in flight (of a policy that
//                     counts failures) has minus that for its score, which no window reaches.
//   block     String  "<scope> <shortCount> <longCount> <blockMs>[ <reason>]". Its TTL is the truth.
//   seq       String  "<tempFloor> <longFloor> <tempStrikes> <longStrikes> <lastForgiven>": attempts up to a
//                     tier's floor have been served by a block.
//
// Reply to a check: "<ms> <what stands>", where what stands is the value of a block, or "ok", "window" or "busy"
// and the two counts; several of them joined by ";".

/** The rules, in the order in which the Lua functions take them. */
const RULES = [
  'tempWindowMs',
  'tempThreshold',
  'tempBlockMs',
  'longWindowMs',
  'longThreshold',
  'longBlockMs',
  'factor',
  'maxBlockMs',
  'recordTtlMs',
] as const satisfies readonly (keyof LimitRules)[];

/** What a check does: count the call, note it as in flight, or make a failure of what was in flight. */
export type Stage = 'attempt' | 'enter' | 'confirm';

// Fragments rather than Lua functions: a function costs its making in every run of a script.

/** `floor` and `strikes` of both tiers, and the last forgiven call, out of `record`. */
const PARSE_RECORD = `
local tempFloor, longFloor, tempStrikes, longStrikes, forgiven = 0, 0, 0, 0, ''
if record then
  tempFloor, longFloor, tempStrikes, longStrikes, forgiven =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) ([%w_-]*)$')
  if not tempFloor then error('SYNCGUARD_FOREIGN the record is not of strikes', 0) end
  tempFloor, longFloor = tonumber(tempFloor), tonumber(longFloor)
end`;

const formatRecord = (forgiven: string): string =>
  `string.format('%.0f %.0f %.0f %.0f %s', tempFloor, longFloor, tempStrikes, longStrikes, ${forgiven})`;

/** `remainingMs`: the whole of a block that lost its TTL. */
const BLOCK_LENGTH = `
remainingMs = tonumber(string.match(held, '^%a+ %d+ %d+ (%d+)'))
if not remainingMs then error('SYNCGUARD_FOREIGN the block is not a block', 0) end`;

/** Attempts after these instants count: (now - window, now], and open at the end, for a clock that stepped back. */
const WINDOW_STARTS = `
local tempFrom = nowMs - tempWindowMs
if tempFloor > tempFrom then tempFrom = tempFloor end
local longFrom = tempFrom
if longThreshold > 0 then
  longFrom = nowMs - longWindowMs
  if longFloor > longFrom then longFrom = longFloor end
end`;

/** A limit without a block: until so many of the oldest attempts have left the window that the call fits. */
const WAIT_FOR_ROOM = `
local excess = shortCount + cost - tempThreshold + 1
local oldest = call('ZRANGEBYSCORE', attempts, '(' .. tempFrom, '+inf', 'WITHSCORES', 'LIMIT', excess - 1, 1)
local waitMs = oldest[2] + tempWindowMs - nowMs`;

// `call` is a local of its own: `redis.call` is looked up twice.
const DECIDE = `
local call = redis.call
local nowMs

local function heal(key, ttlMs)
  if call('PTTL', key) == -1 then call('PEXPIRE', key, ttlMs) end
end

-- A call that was sent again is in the set already.
local function scoreOf(attempts)
  return tonumber(call('ZSCORE', attempts, callId) or nil)
end

-- Whether one limit lets the call in, and the reply. Without \`commit\` nothing is counted.
local function decide(commit, attempts, block, seq, cost, stage, ${RULES.join(', ')})
  local state = call('MGET', block, seq)
  local held, record = state[1], state[2]
  local keepMs = (longWindowMs > tempWindowMs and longWindowMs or tempWindowMs) + ${SLACK_MS}
  if held then
    local remainingMs = call('PTTL', block)
    if remainingMs < 0 then
      ${indent(BLOCK_LENGTH, 6)}
      call('PEXPIRE', block, remainingMs)
      heal(attempts, keepMs)
      heal(seq, recordTtlMs + remainingMs)
    end
    if remainingMs > 0 then return false, remainingMs .. ' ' .. held end
  end

  if not nowMs then
    local time = call('TIME')
    nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  ${indent(PARSE_RECORD, 2)}
  if record then heal(seq, recordTtlMs) end
  ${indent(WINDOW_STARTS, 2)}
  local from = tempFrom < longFrom and tempFrom or longFrom
  local inFlight = 0
  if stage == 'attempt' then
    call('ZREMRANGEBYSCORE', attempts, '-inf', from)
  else
    call('ZREMRANGEBYSCORE', attempts, 0, from)
    call('ZREMRANGEBYSCORE', attempts, ${IN_FLIGHT_MS} - nowMs, '(0')
    inFlight = call('ZCOUNT', attempts, '-inf', '(0')
  end
  local shortCount = call('ZCARD', attempts) - inFlight
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

  -- A block serves every window that is full, up to the newest attempt: also one from before the clock stepped back.
  local newest = tonumber(call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2])
  if tempFull then tempFloor = newest end
  if longFull then longFloor = newest end
  local scope, blockMs = 'temp', tempBlockMs * factor ^ tempStrikes
  if longFull then
    scope, blockMs = 'long', longBlockMs * factor ^ longStrikes
    longStrikes = longStrikes + 1
  else
    tempStrikes = tempStrikes + 1
  end
  blockMs = math.floor(math.min(maxBlockMs, blockMs))
  held = scope .. ' ' .. shortCount .. ' ' .. longCount .. ' ' .. blockMs
  call('SET', block, held, 'PX', blockMs)
  call('SET', seq, ${formatRecord('forgiven')}, 'PX', recordTtlMs + blockMs)
  return false, blockMs .. ' ' .. held
end`;

/** A fragment's lines as deep as the place where it stands. */
function indent(lua: string, by: number): string {
  return lua.trim().replaceAll('\n', `\n${' '.repeat(by)}`);
}

/** One limit of a check: with its rules where they stand in the script's text, without where they come as ARGV. */
export interface DecisionShape {
  readonly stage: Stage;
  readonly rules: LimitRules;
}

export type CheckScript = Script<string, string, LimitOutcome[]>;

const numbered = (names: readonly string[], count: number): string[] =>
  Array.from({ length: count }, (_, i) => names.map((name) => `${name}${i + 1}`)).flat();

const DYNAMIC_ARGS = ['cost', 'stage', ...RULES] as const;

/**
 * The decision about a call that is counted against so many limits: against all, or, if some deny it, against
 * those alone. One limit replies at once; several are asked first and counted then.
 */
function checkScript(name: string, limits: readonly string[], args: readonly string[]): CheckScript {
  const [only] = limits;
  const lua =
    limits.length === 1
      ? `local _, reply = decide(true, ${only})\nreturn reply`
      : `
local limits = {
${limits.map((limit) => `  function(commit) return decide(commit, ${limit}) end,`).join('\n')}
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
  return defineScript({
    name,
    keys: numbered(['attempts', 'block', 'seq'], limits.length),
    args: ['callId', ...args],
    lua: `${DECIDE}\n\n${lua.trim()}`,
    decode: decodeOutcomes,
  });
}

/** The rules come with each call: for policies that are known only with it. One script for each number of limits. */
export const checkScripts: readonly CheckScript[] = Array.from({ length: MAX_CHECKS }, (_, i) =>
  checkScript(
    `limit-check-${i + 1}`,
    Array.from({ length: i + 1 }, (_, n) => dynamicLimit(n + 1)),
    numbered(DYNAMIC_ARGS, i + 1),
  ),
);

function dynamicLimit(n: number): string {
  const rules = RULES.map((rule) => `tonumber(${rule}${n})`);
  return [`attempts${n}`, `block${n}`, `seq${n}`, `cost${n}`, `stage${n}`, ...rules].join(', ');
}

/** What `checkScripts` take as arguments for the nth limit of a call. */
export function dynamicArgs(
  { stage, rules }: DecisionShape,
  cost: number,
  n: number,
): Record<string, string | number> {
  const args: Record<string, string | number> = { [`cost${n}`]: cost, [`stage${n}`]: stage };
  for (const rule of RULES) args[`${rule}${n}`] = rules[rule];
  return args;
}

/** The rules stand in the script's text: fewer bytes a call, and nothing to parse. For policies known at boot. */
export function fixedCheckScript(shapes: readonly DecisionShape[]): CheckScript {
  const limits = shapes.map(({ stage, rules }, i) =>
    [
      `attempts${i + 1}`,
      `block${i + 1}`,
      `seq${i + 1}`,
      `cost${i + 1}`,
      `'${stage}'`,
      ...RULES.map((rule) => rules[rule]),
    ].join(', '),
  );
  return checkScript('limit-check-fixed', limits, numbered(['cost'], shapes.length));
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
if held then
  local remainingMs = call('PTTL', block)
  if remainingMs < 0 then
    ${indent(BLOCK_LENGTH, 4)}
  end
  if remainingMs > 0 then return remainingMs .. ' ' .. held end
end
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
  resetMs = call('ZREVRANGE', attempts, 0, 0, 'WITHSCORES')[2] + tempWindowMs - nowMs
end
return resetMs .. ' ok ' .. shortCount .. ' ' .. longCount`,
  decode: (reply): LimitOutcome => decodeOutcomes(reply)[0] ?? unexpectedReply('limit-peek', reply),
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

export const resetScript = defineScript({
  name: 'limit-reset',
  keys: ['attempts', 'block', 'seq'],
  args: [],
  lua: `
redis.call('DEL', attempts, block, seq)
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
  withdrawScript,
  forgiveScript,
  resetScript,
  blockScript,
  unblockScript,
] as readonly Script[];

function decodeDone(name: string): (reply: unknown) => void {
  return (reply) => {
    if (reply !== 1) unexpectedReply(name, reply);
  };
}

function decodeOutcomes(reply: unknown): LimitOutcome[] {
  if (typeof reply !== 'string') return unexpectedReply('limit-check', reply);
  return reply.includes(';') ? reply.split(';').map(decodeOutcome) : [decodeOutcome(reply)];
}

function decodeOutcome(reply: string): LimitOutcome {
  const [ms, status, short, long, , reason] = reply.split(' ');
  const counts = { shortCount: Number(short), longCount: Number(long) };
  const retryAfterMs = Number(ms);
  switch (status) {
    case 'ok':
      return { status: 'allowed', ...counts, resetMs: retryAfterMs };
    case 'window':
      return { status: 'denied', scope: 'temp', reason: 'temp', retryAfterMs, ...counts, blocked: false };
    case 'busy':
      return { status: 'denied', scope: 'temp', reason: 'busy', retryAfterMs, ...counts, blocked: false };
    case 'temp':
    case 'long':
      return { status: 'denied', scope: status, reason: status, retryAfterMs, ...counts, blocked: true };
    case 'manual':
      return {
        status: 'denied',
        scope: status,
        reason: reason ? decodeURIComponent(reason) : status,
        retryAfterMs,
        ...counts,
        blocked: true,
      };
    default:
      throw foreignValue('the block is not a block');
  }
}
