import { SyncGuardConfigError } from '../core/errors.js';
import {
  type CountedPolicy,
  isUncounted,
  type LimitCheck,
  type LimitRules,
  type Subject,
  type TierRules,
} from './limit.backend.js';
import { optionalFunction } from '../core/option-table.js';
import { boolean, integer, invalidOption, knownOptions, oneOf } from '../core/validate.js';
import type { AskTime, CountedCalls, LimitAlgorithm, OnError } from './limit.types.js';
import { isByUser, resolveKeyBy } from './limit.key-by.js';
import type { FromContext, KeyBy, LimitPolicy, LimitPolicyOptions } from './policy.types.js';
import { NAMES_ACCOUNT } from './presets.js';

/** The highest threshold of a sliding log, which keeps every attempt. For higher limits there is the fixed window. */
export const MAX_THRESHOLD = 10_000;
/** The longest window and block, a leap year. It may be longer than the longest timer, because no timer waits for it. */
export const MAX_LIMIT_MS = 366 * 86_400_000;
/** The highest cost in a sliding log, which keeps one entry for each unit of the cost. */
const MAX_LOGGED_COST = 1_000;
/** The highest limit of a fixed window. Lua represents it exactly. */
export const MAX_COUNTED = 2 ** 31 - 1;

type Settled = Pick<LimitPolicyOptions, 'cost' | 'keyBy' | 'ask' | 'resetOnSuccess' | 'onError' | 'code'>;

/** A policy that was checked, with all defaults. */
export interface ResolvedPolicy extends CountedPolicy, Readonly<Required<Settled>> {
  /** A `limit` that is a function. Until `withLimit` has been called, `rules` hold a limit of 1 in its place. */
  readonly dynamicLimit: FromContext<number | 'unlimited'> | undefined;
  /** A `windowMs` that is a function. Until `withWindow` has been called, `rules` hold a window of 1 ms in its place. */
  readonly dynamicWindow: FromContext<number> | undefined;
  readonly isFailure: LimitPolicyOptions['isFailure'];
  /** Whether the policy sets `ask` itself. */
  readonly isAskGiven: boolean;
  /** Whether its values of clients name accounts, as in presets and their copies: then accents do not count. */
  readonly namesAccount: boolean;
  readonly judgedBy: LimitPolicyOptions['judgedBy'];
  readonly message: LimitPolicyOptions['message'];
  readonly shadow: boolean;
  /**
   * Whether the limiter has added the policy. It stands in for one that counts failures and is asked after the guards: it counts, by
   * address, the calls that a guard refuses.
   */
  readonly isWatching?: true;
}

export type PolicySubject = Subject<ResolvedPolicy>;
export type PolicyCheck = LimitCheck<ResolvedPolicy>;

export interface PolicyDefaults {
  name?: string | undefined;
  /** Where the policy stands, for error messages: `limits.login`, or a decorator. Default: the name. */
  path?: string | undefined;
  onError?: OnError | undefined;
  keyBy?: KeyBy | undefined;
  /** Whether the policy is known at boot. Policies in calls are not: there may be any number of them. */
  isStatic?: boolean | undefined;
}

const OPTIONS = [
  'limit',
  'windowMs',
  'blockMs',
  'algorithm',
  'temp',
  'long',
  'name',
  'keyBy',
  'cost',
  'count',
  'isFailure',
  'ask',
  'judgedBy',
  'resetOnSuccess',
  'onError',
  'code',
  'escalation',
  'message',
  'shadow',
] as const;
type Given = Partial<Record<(typeof OPTIONS)[number], unknown>>;

/**
 * Checks a policy and adds its defaults. Called once for each policy, at boot or when a call first uses it.
 *
 * @throws SyncGuardConfigError with the policy, option, bound, value and type
 */
export function resolvePolicy(policy: LimitPolicy, defaults: PolicyDefaults = {}): ResolvedPolicy {
  const given: Given = knownOptions(defaults.path ?? defaults.name ?? 'policy', policy, OPTIONS);
  const name = resolveName(given.name ?? defaults.name);
  const path = defaults.path ?? name;
  const algorithm = resolveAlgorithm(path, given);
  const rules = resolveRules(path, algorithm, given);
  const dynamicLimit = functionIn<number | 'unlimited'>(given.limit);
  const dynamicWindow = functionIn<number>(given.windowMs);
  const count = resolveCount(path, given.count, rules);
  const keyBy = resolveKeyBy(`${path}.keyBy`, given.keyBy ?? defaults.keyBy ?? 'ip');
  const bounds = { name: path, algorithm, rules, dynamicLimit, count };
  const cost = functionIn<number>(given.cost) ?? validateCost(bounds, given.cost ?? 1);
  const parts = [keyBy, cost, dynamicLimit, dynamicWindow].flat();
  const ask = resolveAsk(path, given.ask, isByUser(keyBy), count !== 'failure' && parts.some(functionIn));
  const shadow = boolean(`${path}.shadow`, given.shadow ?? false);
  return {
    name: shadow ? shadowName(name) : name,
    shadow,
    algorithm,
    rules,
    dynamicLimit,
    dynamicWindow,
    cost,
    keyBy,
    count,
    ask,
    isAskGiven: given.ask !== undefined,
    namesAccount: NAMES_ACCOUNT in policy,
    judgedBy: resolveJudgedBy(`${path}.judgedBy`, given.judgedBy, count, ask),
    isFailure: optionalFunction(`${path}.isFailure`, given.isFailure),
    resetOnSuccess: boolean(`${path}.resetOnSuccess`, given.resetOnSuccess ?? false),
    onError: shadow
      ? 'open'
      : resolveOnError(`${path}.onError`, given.onError ?? defaults.onError ?? 'memory'),
    code: oneOf(
      `${path}.code`,
      given.code ?? (rules.tiers[0].blockMs > 0 ? 'TooManyAttempts' : 'RateLimited'),
      ['TooManyAttempts', 'RateLimited'],
    ),
    message: resolveMessage(`${path}.message`, given.message),
    isStatic: (defaults.isStatic ?? false) && !dynamicLimit && !dynamicWindow,
  };
}

/** The name under which a policy counts that is tried. */
const shadowName = (name: string): string => `${name} shadow`;

/** Returns the name that the user has given. */
export const nameWithoutShadow = (name: string): string => name.replace(/ shadow$/, '');

/** Returns a warning if a window is so short that its policy was probably written in seconds. */
export function shortWindowWarning(policies: readonly ResolvedPolicy[]): string | undefined {
  const short = policies.filter(
    ({ rules: { tiers }, dynamicWindow }) => !dynamicWindow && tiers[0].windowMs < 100,
  );
  if (short.length === 0) return undefined;
  const names = short.map(({ name, rules }) => `${name} (${rules.tiers[0].windowMs})`);
  return `RATE_LIMIT_SHORT_WINDOW: \`windowMs\` is in ms. It is below 100 in these policies: ${[...new Set(names)].join(', ')}. Write \`seconds(n)\` or \`minutes(n)\`.`;
}

export const resolveOnError = (name: string, value: unknown): OnError =>
  oneOf(name, value, ['closed', 'memory', 'open']);

/** Checks the cost of a call. Throws if it is not a valid cost under this policy. */
export function validateCost(policy: CostBounds, cost: unknown): number {
  // Without a block, and with `count: 'success'`, a call is let in only if there is room for it. A cost above the limit never
  // fits, so no Retry-After would be true.
  const { tiers } = policy.rules;
  const needsRoom = (tiers[0].blockMs === 0 || policy.count === 'success') && !isUncounted(policy);
  const limit =
    needsRoom && !policy.dynamicLimit ? Math.min(...tiers.map(({ threshold }) => threshold)) - 1 : Infinity;
  const most = policy.algorithm === 'fixed-window' ? MAX_COUNTED : MAX_LOGGED_COST;
  return integer(`${policy.name}.cost`, cost, 1, Math.min(most, limit));
}

type CostBounds = Pick<ResolvedPolicy, 'name' | 'algorithm' | 'rules' | 'dynamicLimit' | 'count'>;

export const limitDuration = (name: string, value: unknown): number => integer(name, value, 1, MAX_LIMIT_MS);

function resolveName(name: unknown): string {
  if (typeof name === 'string' && /^[\x20-\x7e]{1,200}$/.test(name)) return name;
  throw invalidOption(
    "a policy's name",
    '1 to 200 printable ASCII characters',
    name,
    'The name keeps the counts of one policy apart from those of others.',
  );
}

/** Throws for an option that a fixed window would have to ignore. */
function resolveAlgorithm(name: string, given: Given): LimitAlgorithm {
  const algorithm = oneOf(`${name}.algorithm`, given.algorithm ?? 'sliding-log', [
    'sliding-log',
    'fixed-window',
  ]);
  if (algorithm === 'sliding-log') return algorithm;
  const refuse = (option: string): never => {
    throw new SyncGuardConfigError(`${name}.${option} cannot be used with \`algorithm: 'fixed-window'\`.`, {
      hint: 'A fixed window has only `limit`, `windowMs` and `blockMs`. For two tiers, longer blocks, or to count failures or successes, leave out `algorithm`.',
    });
  };
  for (const option of ['temp', 'long', 'escalation'] as const)
    if (given[option] !== undefined) refuse(option);
  if (given.count === 'failure' || given.count === 'success') refuse(`count: '${given.count}'`);
  return algorithm;
}

function resolveRules(name: string, algorithm: LimitAlgorithm, given: Given): LimitRules {
  if ((given.temp === undefined) === (given.limit === undefined))
    throw new SyncGuardConfigError(`${name} must have either \`limit\` and \`windowMs\`, or \`temp\`.`);
  const tiers: LimitRules['tiers'] =
    given.temp === undefined ? [resolvePlain(name, algorithm, given)] : resolveTiers(name, given);
  return { tiers, ...resolveEscalation(`${name}.escalation`, given.escalation, tiers) };
}

/** Checks `count`. The success that fills a tier is the last that is let in, so a threshold of 1 would let none in. */
function resolveCount(name: string, count: unknown, rules: LimitRules): CountedCalls {
  const counted = oneOf(`${name}.count`, count ?? 'attempt', ['attempt', 'failure', 'success']);
  if (counted === 'success' && rules.tiers.some(({ threshold }) => threshold === 1))
    throw new SyncGuardConfigError(`${name}.threshold must be at least 2 with \`count: 'success'\`.`, {
      hint: '`threshold: 2` or `limit: 1` lets one success in.',
    });
  return counted;
}

/**
 * Checks `ask`. A function may need values that guards find, so by default its policy is asked after them. A policy that
 * counts failures is asked before, so that it counts the calls that guards refuse.
 */
function resolveAsk(name: string, ask: unknown, needsUser: boolean, needsGuards: boolean): AskTime {
  const given = oneOf(`${name}.ask`, ask ?? (needsUser || needsGuards ? 'after' : 'before'), [
    'before',
    'after',
  ]);
  if (given === 'before' && needsUser)
    throw new SyncGuardConfigError(
      `The policy ${name} counts by the user, so it cannot have \`ask: 'before'\`. Before the guards the user is not known.`,
      {
        code: 'RATE_LIMIT_ASK',
        hint: "Remove `ask: 'before'`. To count the calls that guards refuse, add a policy with `keyBy: 'ip'`.",
      },
    );
  return given;
}

/** Checks `judgedBy`. A policy that is asked after the guards counts none of the calls that they judge. */
function resolveJudgedBy(
  name: string,
  judgedBy: unknown,
  count: CountedCalls,
  ask: AskTime,
): ResolvedPolicy['judgedBy'] {
  if (judgedBy === undefined) return undefined;
  if (count !== 'failure') throw new SyncGuardConfigError(`${name} needs \`count: 'failure'\`.`);
  if (judgedBy === 'guards' && ask === 'after')
    throw new SyncGuardConfigError(
      `${name} cannot be 'guards', because the policy is asked after the guards.`,
    );
  return oneOf(name, judgedBy, ['guards', 'handler']);
}

/** In place of a function there is a limit of 1, or a window of 1 ms. */
function resolvePlain(name: string, algorithm: LimitAlgorithm, given: Given): TierRules {
  if (given.long !== undefined)
    throw new SyncGuardConfigError(`${name}.long needs ${name}.temp instead of ${name}.limit.`);
  return {
    windowMs: functionIn(given.windowMs) ? 1 : limitDuration(`${name}.windowMs`, given.windowMs),
    threshold: thresholdOf(name, { limit: functionIn(given.limit) ? 1 : given.limit }, algorithm),
    blockMs: given.blockMs === undefined ? 0 : limitDuration(`${name}.blockMs`, given.blockMs),
  };
}

function resolveTiers(name: string, given: Given): LimitRules['tiers'] {
  if (given.windowMs !== undefined || given.blockMs !== undefined)
    throw new SyncGuardConfigError(
      `${name}.windowMs and ${name}.blockMs must be inside ${name}.temp, because the policy has \`temp\`.`,
    );
  const temp = resolveTier(`${name}.temp`, given.temp);
  if (given.long === undefined) return [temp];
  const long = resolveTier(`${name}.long`, given.long);
  if (long.windowMs >= temp.windowMs) return [temp, long];
  const bound = `at least ${name}.temp.windowMs (${temp.windowMs})`;
  throw invalidOption(`${name}.long.windowMs`, bound, long.windowMs);
}

function resolveTier(name: string, tier: unknown): TierRules {
  const given = knownOptions(name, tier, ['windowMs', 'threshold', 'limit', 'blockMs']);
  return {
    windowMs: limitDuration(`${name}.windowMs`, given.windowMs),
    threshold: thresholdOf(name, given),
    blockMs: limitDuration(`${name}.blockMs`, given.blockMs),
  };
}

function thresholdOf(
  name: string,
  given: { threshold?: unknown; limit?: unknown },
  algorithm: LimitAlgorithm = 'sliding-log',
): number {
  if ((given.threshold === undefined) === (given.limit === undefined))
    throw new SyncGuardConfigError(`${name} must have either \`threshold\` or \`limit\`.`, {
      hint: '`threshold: 5` denies the 5th attempt. `limit: 5` denies the 6th.',
    });
  if (given.limit === undefined) return integer(`${name}.threshold`, given.threshold, 1, MAX_THRESHOLD);
  const most = algorithm === 'fixed-window' ? MAX_COUNTED : MAX_THRESHOLD - 1;
  return integer(`${name}.limit`, given.limit, 1, most) + 1;
}

function resolveEscalation(
  name: string,
  escalation: unknown,
  tiers: readonly TierRules[],
): Omit<LimitRules, 'tiers'> {
  const longestWindowMs = Math.max(...tiers.map(({ windowMs }) => windowMs));
  const longestBlockMs = Math.max(...tiers.map(({ blockMs }) => blockMs));
  if (escalation === undefined)
    return { factor: 1, maxBlockMs: MAX_LIMIT_MS, penaltiesTtlMs: longestWindowMs };
  if (longestBlockMs === 0)
    throw new SyncGuardConfigError(`${name} needs a policy that blocks. Add \`blockMs\`.`);
  const given = knownOptions(name, escalation, ['factor', 'maxBlockMs', 'strikeTtlMs']);
  const { factor } = given;
  if (typeof factor !== 'number' || !(factor >= 1 && factor <= 100))
    throw invalidOption(`${name}.factor`, 'a number from 1 to 100', factor);
  return {
    factor,
    maxBlockMs: integer(`${name}.maxBlockMs`, given.maxBlockMs, longestBlockMs, MAX_LIMIT_MS),
    penaltiesTtlMs: integer(`${name}.strikeTtlMs`, given.strikeTtlMs, longestWindowMs, MAX_LIMIT_MS),
  };
}

function resolveMessage(name: string, message: unknown): ResolvedPolicy['message'] {
  if (message === undefined || typeof message === 'function') return message as ResolvedPolicy['message'];
  if (typeof message === 'string' && message.length > 0 && message.length <= 1_000) return message;
  throw invalidOption(name, 'a text of 1 to 1,000 characters or a function', message);
}

/** Returns the value if it is a function of the request. */
const functionIn = <T>(value: unknown): FromContext<T> | undefined =>
  typeof value === 'function' ? (value as FromContext<T>) : undefined;
