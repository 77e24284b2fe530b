import { foreignValue } from '../../redis/redis.errors.js';
import {
  commandsOf,
  defineScript,
  type Script,
  unexpectedReply,
  wordsOf,
} from '../../script/define-script.js';
import { inLines } from '../../script/fragments.js';
import {
  type BackendDecision,
  keepAttemptsMs,
  keepMs,
  type LimitCheck,
  type LimitRules,
  renewAttemptsMs,
} from '../limit.backend.js';
import { denyIfBlocked, indent, type TierName, TIERS, UNCOUNTED } from './limit.fragments.js';
import * as log from './log.decider.js';
import { LOOK_WINDOW, PEEK_WINDOW, RAISED, WINDOW } from './window.decider.js';

// The keys of an identity, all with a TTL:
//   attempts   ZSET    The member is the id of a call, the score is its time in ms. A call in flight has its negated time as
//                      score, so that no window contains it.
//   window     String  The count of a limit whose algorithm is `fixed-window`, as a number that ends with the window. While
//                      there is a block, the text of window.decider.ts. In Redis the key has the name `fixed`.
//   block      String  "<scope> <shortCount> <longCount> <blockMs>[ <reason>]". The block lasts as long as its TTL.
//   penalties  String  "<shortFloor> <longFloor> <shortStrikes> <longStrikes> <lastForgiven> <struckBy>". Attempts up to a
//                      tier's floor no longer count for the tier, as a block has been set for them. Strikes are the blocks
//                      of a tier. `struckBy` is the route whose calls have set all of these blocks, or `*` for several
//                      routes. In Redis the key has the name `seq`.
const PARTS = ['attempts', 'window', 'block', 'penalties'] as const;
export type Part = (typeof PARTS)[number];

/** The decider of calls that are not counted. A block denies them, and so does a limit of 0. */
const LOOK = /* lua */ `
local blockValue = call('GET', block)
${denyIfBlocked()}
${UNCOUNTED}`;

/**
 * What decides in each mode. The Lua finds keys, cost, rules and `commit` as local variables, and returns the reply.
 * Without `commit` it counts nothing.
 */
const DECIDERS = {
  attempt: log.attempt,
  enter: log.enter,
  confirm: log.confirm,
  reserve: log.reserve,
  grant: log.grant,
  fill: log.fill,
  peek: log.peek,
  window: () => WINDOW,
  raised: () => RAISED,
  'peek-window': () => PEEK_WINDOW,
  look: () => LOOK,
  'look-window': () => LOOK_WINDOW,
} as const;

/** Returns the commands of Redis that checks call, in any of their scripts. */
export const checkCommands = (): string[] =>
  commandsOf(
    Object.values(DECIDERS)
      .map((decider) => decider(TIERS))
      .join('\n'),
  );

/** The way in which a script decides about a call. A peek never commits. */
export type CheckMode = keyof typeof DECIDERS;

/** The modes in which a late call is taken back, whatever was decided. */
export const WITHDRAWN: ReadonlySet<CheckMode> = new Set(['attempt', 'enter', 'reserve']);
/** The modes in which it is taken back if it was counted. */
export const WINDOWS: ReadonlySet<CheckMode> = new Set(['window', 'raised']);

export const PEEK_MODES = {
  'sliding-log': { peek: 'peek', look: 'look' },
  'fixed-window': { peek: 'peek-window', look: 'look-window' },
} as const;

const MODES = { attempt: 'attempt', failure: 'enter', success: 'reserve' } as const;

export function modeOf({ policy, cost }: LimitCheck): CheckMode {
  if (cost === 0) return PEEK_MODES[policy.algorithm].look;
  if (policy.algorithm === 'sliding-log') return MODES[policy.count];
  return policy.isRaised ? 'raised' : 'window';
}

export interface CheckShape {
  readonly mode: CheckMode;
  readonly rules: LimitRules;
}

/** A static script has the rules in its text. So a command has fewer bytes, and the script has no numbers to parse. */
export interface CheckScript extends Script<string, string, BackendDecision[]> {
  readonly isStatic: boolean;
  /** The keys of each limit: their names, and what they hold. */
  readonly parts: readonly (readonly (readonly [name: string, part: Part])[])[];
}

/** The numbers that deciders find, by their names. */
export function numbersOf({ mode, rules }: CheckShape): Record<string, number> {
  const { tiers, ...numbers } = rules;
  const isOfAttempts = mode === 'attempt' || mode === 'peek';
  return Object.assign(
    {},
    ...tiers.map(({ windowMs, threshold, blockMs }, i) => {
      const tier = TIERS[i] as TierName;
      return { [`${tier}WindowMs`]: windowMs, [`${tier}Threshold`]: threshold, [`${tier}BlockMs`]: blockMs };
    }),
    numbers,
    { keepMs: isOfAttempts ? keepAttemptsMs(rules) : keepMs(rules), renewMs: renewAttemptsMs(rules) },
  ) as Record<string, number>;
}

/** A limit in the text of a script: the names of its KEYS and ARGV, and the Lua that makes them its local variables. */
function limitOf(
  shape: CheckShape,
  n: number,
  isStatic: boolean,
): { parts: [name: string, part: Part][]; args: string[]; lua: string } {
  const decider = DECIDERS[shape.mode](TIERS.slice(0, shape.rules.tiers.length));
  const words = wordsOf(decider);
  const keys = PARTS.filter((part) => words.has(part));
  const numbers = Object.entries(numbersOf(shape)).filter(([name]) => words.has(name));
  const values: Record<string, string> = {};
  for (const key of keys) values[key] = key + String(n);
  if (words.has('cost')) values.cost = `tonumber(cost${n})`;
  for (const [name, number] of numbers) values[name] = isStatic ? asNumber(number) : `tonumber(${name}${n})`;
  return {
    parts: keys.map((key) => [key + String(n), key]),
    args: ['cost', ...(isStatic ? [] : numbers.map(([name]) => name))].map((name) => name + String(n)),
    lua: /* lua */ `local ${inLines(Object.keys(values))} =\n  ${inLines(Object.values(values))}${decider}`,
  };
}

/** Lua cannot read Infinity. A decider of an unlimited call only asks whether the limit is 0, so -1 stands for it. */
const asNumber = (rule: number): string => String(rule === Infinity ? -1 : rule);

/**
 * limit-check-*: Decides about one call against several limits. If all of them allow the call, all count it. If
 * some deny it, those that allow it do not count it, and those that deny it may set their block. So several
 * limits decide first without `commit`, and are then asked again with it.
 * KEYS: attempts*, window*, block*, penalties* (* one for each limit, as far as its decider has them)
 * ARGV: callId unless only fixed windows count, and the cost of each limit. If the rules are not in the text of the script, also those of each.
 * Reply: the decisions, joined by `;`: "<ms> <scope or status> <shortCount> <longCount>..."
 * Atomic: calls at the same time never pass a limit together, and a denied call is counted by no other limit.
 */
export function checkScript(shapes: readonly CheckShape[], isStatic: boolean): CheckScript {
  const limits = shapes.map((shape, i) => limitOf(shape, i + 1, isStatic));
  const [only] = limits;
  const decide =
    only && limits.length === 1
      ? `local commit = ${String(!shapes[0]?.mode.startsWith('peek'))}\n${only.lua}`
      : `
local limits = {
${limits.map(({ lua }) => `  function(commit)\n    ${indent(lua, 4)}\n  end,`).join('\n')}
}
local allAllow, allows, replies = true, {}, {}
for i, limit in ipairs(limits) do
  replies[i] = limit(false)
  allows[i] = string.find(replies[i], '^%d+ ok ') ~= nil
  allAllow = allAllow and allows[i]
end
for i, limit in ipairs(limits) do
  if allows[i] == allAllow then replies[i] = limit(true) end
end
return table.concat(replies, ';')`;
  const words = wordsOf(decide);
  const script = defineScript({
    name: `limit-check-${isStatic ? 'static' : shapes.map(({ mode }) => mode).join('-')}`,
    keys: limits.flatMap(({ parts }) => parts.map(([name]) => name)),
    args: [...(words.has('callId') ? ['callId'] : []), ...limits.flatMap(({ args }) => args)],
    lua: /* lua */ `local call${words.has('nowMs') ? ', nowMs = redis.call, nil' : ' = redis.call'}\n${decide}`,
    decode: decodeDecisions,
  });
  return Object.assign(script, { isStatic, parts: limits.map(({ parts }) => parts) });
}

/** Each decision is "<ms> <value of the block>", or "<ms> <word> <shortCount> <longCount>". */
function decodeDecisions(reply: unknown): BackendDecision[] {
  if (typeof reply !== 'string') return unexpectedReply('limit-check', reply);
  return reply.includes(';') ? reply.split(';').map(decodeDecision) : [decodeDecision(reply)];
}

export function decodeDecision(reply: string): BackendDecision {
  const [ms, status, short, long, blockMs, text] = reply.split(' ');
  const counts = { shortCount: Number(short), longCount: Number(long) };
  const retryAfterMs = Number(ms);
  switch (status) {
    case 'ok':
      return { status: 'allowed', ...counts, resetMs: retryAfterMs };
    case 'unknown':
      return { status: 'allowed', ...counts, resetMs: retryAfterMs, isUnknown: true };
    case 'window':
      return { status: 'denied', scope: 'temp', reason: 'temp', retryAfterMs, ...counts, blocked: false };
    case 'busy':
      return { status: 'denied', scope: 'temp', reason: 'busy', retryAfterMs, ...counts, blocked: false };
    case 'temp':
    case 'long':
    case 'manual': {
      const reason = text ? decodeURIComponent(text) : status;
      const isNew = ms === blockMs;
      return { status: 'denied', scope: status, reason, retryAfterMs, ...counts, blocked: true, isNew };
    }
    default:
      throw foreignValue('the block is not ours');
  }
}
