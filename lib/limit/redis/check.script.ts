import { type BackendDecision, type LimitRules, MAX_CHECKS } from '../limit.backend.js';
import { DECIDE_IN_WINDOW } from './fixed-window.scripts.js';
import { RULES, denyIfBlocked, indent } from './limit.fragments.js';
import { decodeDecisions } from './limit.replies.js';
import { DECIDE } from './log.decider.js';
import { DECIDE_SUCCESS } from './success.decider.js';
import { defineScript, type Script } from '../../script/define-script.js';
import { inLines } from '../../script/fragments.js';

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
const START = /* lua */ `
local call = redis.call`;

/** What limits share that count a call. */
const START_COUNTING = /* lua */ `
local nowMs

local function heal(key, ttlMs)
  if call('PTTL', key) == -1 then call('PEXPIRE', key, ttlMs) end
end`;

/** The decider of calls that are not counted. A block denies them, and so does a limit of 0. */
const LOOK = /* lua */ `
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
 * limit-check-*: Decides about one call against several limits. If all of them allow the call, all count it. If
 * some deny it, those that allow it do not count it, and those that deny it may set their block. So several
 * limits decide first without `commit`, and are then asked again with it.
 * KEYS: attempts*, window*, block*, penalties* (* one for each limit, as far as its decider has them)
 * ARGV: callId, and the cost of each limit. If the rules are not in the text of the script, also mode and rules
 *   of each limit.
 * Reply: the decisions, joined by `;`: "<ms> <scope or status> <shortCount> <longCount>..."
 * Atomic: calls at the same time never pass a limit together, and a denied call is counted by no other limit.
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
