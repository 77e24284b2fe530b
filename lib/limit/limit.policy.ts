import { SyncGuardConfigError } from '../core/errors.js';
import { type CountedPolicy, type LimitCheck, type LimitRules, type Subject } from './limit.backend.js';
import { boolean, integer, invalidOption, knownOptions, oneOf } from '../core/validate.js';
import type { AskTime, CountedCalls, LimitAlgorithm, OnError, TooManyAttemptsCode } from './limit.types.js';
import type { FromContext, KeyBy, KeyPart, LimitPolicy } from './policy.types.js';

/** The highest threshold of a sliding log, which keeps every attempt. For higher limits there is the fixed window. */
export const MAX_THRESHOLD = 10_000;
/** The longest window and block, a leap year. It may be longer than the longest timer, because no timer waits for it. */
export const MAX_LIMIT_MS = 366 * 86_400_000;
/** The highest cost in a sliding log, which keeps one entry for each unit of the cost. */
const MAX_LOGGED_COST = 1_000;
/** The highest limit of a fixed window. Lua represents it exactly. */
export const MAX_COUNTED = 2 ** 31 - 1;

/** A policy that was checked, with all defaults. */
export interface ResolvedPolicy extends CountedPolicy {
  /** A `limit` that is a function. Until `withLimit` has been called, `rules` hold a limit of 1 in its place. */
  readonly dynamicLimit: FromContext<number | 'unlimited'> | undefined;
  /** A `windowMs` that is a function. Until `withWindow` has been called, `rules` hold a window of 1 ms in its place. */
  readonly dynamicWindow: FromContext<number> | undefined;
  readonly cost: number | FromContext<number>;
  readonly keyBy: KeyBy;
  readonly isFailure: IsFailure | undefined;
  readonly ask: AskTime;
  /** Whether the policy sets `ask` itself. */
  readonly isAskGiven: boolean;
  readonly resetOnSuccess: boolean;
  readonly onError: OnError;
  readonly code: TooManyAttemptsCode;
}

export type PolicySubject = Subject<ResolvedPolicy>;
export type PolicyCheck = LimitCheck<ResolvedPolicy>;

type IsFailure = NonNullable<LimitPolicy['isFailure']>;

/** The values of options that a policy does not set. */
export interface PolicyDefaults {
  name?: string | undefined;
  /** Where the policy stands, for error messages: `limits.login`, or a decorator. Default: the name. */
  path?: string | undefined;
  onError?: OnError | undefined;
  keyBy?: KeyBy | undefined;
  /** Whether the policy is known at boot. Policies in calls are not: there may be any number of them. */
  isStatic?: boolean | undefined;
}

/** The paths that `keyBy` may name. */
const KEY_PATH = /^(ip|user|route|(body|query|params|headers|user|session|cookies)(\.[^.]+)+)$/;

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
  'resetOnSuccess',
  'onError',
  'code',
  'escalation',
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
  const { rules, dynamicLimit, dynamicWindow } = resolveRules(path, algorithm, given);
  const count = resolveCount(path, given.count, rules);
  const keyBy = resolveKeyBy(`${path}.keyBy`, given.keyBy ?? defaults.keyBy ?? 'ip');
  const cost = resolveCost(given.cost ?? 1, { name: path, algorithm, rules, dynamicLimit, count });
  return {
    name,
    algorithm,
    rules,
    dynamicLimit,
    dynamicWindow,
    cost,
    keyBy,
    count,
    ask: resolveAsk(path, given.ask, { keyBy, count, cost, dynamicLimit, dynamicWindow }),
    isAskGiven: given.ask !== undefined,
    isFailure: resolvePredicate(`${path}.isFailure`, given.isFailure),
    resetOnSuccess: boolean(`${path}.resetOnSuccess`, given.resetOnSuccess ?? false),
    onError: resolveOnError(`${path}.onError`, given.onError ?? defaults.onError ?? 'memory'),
    code: oneOf(`${path}.code`, given.code ?? (rules.shortBlockMs > 0 ? 'TooManyAttempts' : 'RateLimited'), [
      'TooManyAttempts',
      'RateLimited',
    ]),
    isStatic: (defaults.isStatic ?? false) && !dynamicLimit && !dynamicWindow,
  };
}

/** Returns whether `keyBy` names the user, which is known only after the guards. */
export const isByUser = (keyBy: KeyBy): boolean =>
  ([keyBy].flat() as readonly KeyPart[]).some((part) => typeof part === 'string' && /^user(\.|$)/.test(part));

export const resolveOnError = (name: string, value: unknown): OnError =>
  oneOf(name, value, ['closed', 'memory', 'open']);

/** Checks the cost of a call. Throws if it is not a valid cost under this policy. */
export function validateCost(policy: CostBounds, cost: unknown): number {
  // Without a block, and with `count: 'success'`, a call is let in only if there is room for it. A cost above the limit never
  // fits, so no Retry-After would be true.
  const { shortBlockMs, shortThreshold, longThreshold } = policy.rules;
  const needsRoom = shortBlockMs === 0 || policy.count === 'success';
  const limit =
    needsRoom && !policy.dynamicLimit ? Math.min(shortThreshold, longThreshold || Infinity) - 1 : Infinity;
  return integer(`${policy.name}.cost`, cost, 1, Math.min(maxCost(policy), limit));
}

type CostBounds = Pick<ResolvedPolicy, 'name' | 'algorithm' | 'rules' | 'dynamicLimit' | 'count'>;

const maxCost = ({ algorithm }: CostBounds): number =>
  algorithm === 'fixed-window' ? MAX_COUNTED : MAX_LOGGED_COST;

export function resolveKeyBy(name: string, keyBy: unknown): KeyBy {
  const parts: readonly unknown[] = Array.isArray(keyBy) ? keyBy : [keyBy];
  const isPart = (part: unknown): boolean =>
    typeof part === 'function' || (typeof part === 'string' && KEY_PATH.test(part));
  if (parts.length > 0 && parts.every(isPart)) {
    for (const part of parts) if (typeof part === 'string') refuseForwardedFor(name, part);
    return keyBy as KeyBy;
  }
  throw invalidOption(
    name,
    `'ip', 'user', 'route', a path such as 'body.email', a function, or a list of these`,
    keyBy,
  );
}

/**
 * Refuses the headers of forwarded addresses. A proxy only adds to the value that a client sent, so a client could look
 * like another one at each call.
 */
export function refuseForwardedFor(name: string, path: string): string {
  if (!/^headers\.(x-forwarded-for|forwarded)$/i.test(path)) return path;
  throw new SyncGuardConfigError(`${name} must not be '${path}', because clients can write that header.`, {
    hint: "Use 'ip', and set `trust proxy` of Express or `trustProxy` of Fastify to your proxies.",
  });
}

/** Checks the duration of a window or block, in ms. */
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
      hint: 'A fixed window has only `limit` and `windowMs`. To block, or to count failures or successes, leave out `algorithm`.',
    });
  };
  for (const option of ['temp', 'long', 'blockMs', 'escalation'] as const)
    if (given[option] !== undefined) refuse(option);
  if (given.count === 'failure' || given.count === 'success') refuse(`count: '${given.count}'`);
  return algorithm;
}

function resolveRules(
  name: string,
  algorithm: LimitAlgorithm,
  given: Given,
): Pick<ResolvedPolicy, 'rules' | 'dynamicLimit' | 'dynamicWindow'> {
  if ((given.temp === undefined) === (given.limit === undefined))
    throw new SyncGuardConfigError(`${name} must have either \`limit\` and \`windowMs\`, or \`temp\`.`);
  const { temp, long, dynamicLimit, dynamicWindow } =
    given.temp === undefined ? resolvePlain(name, algorithm, given) : resolveTiers(name, given);
  const longest = Math.max(temp.windowMs, long?.windowMs ?? 0);
  const longestBlock = Math.max(temp.blockMs, long?.blockMs ?? 0);
  const escalation = resolveEscalation(`${name}.escalation`, given.escalation, longest, longestBlock);
  return {
    dynamicLimit,
    dynamicWindow,
    rules: {
      shortWindowMs: temp.windowMs,
      shortThreshold: temp.threshold,
      shortBlockMs: temp.blockMs,
      longWindowMs: long?.windowMs ?? 0,
      longThreshold: long?.threshold ?? 0,
      longBlockMs: long?.blockMs ?? 0,
      ...escalation,
    },
  };
}

/** Checks `count`. The success that fills a tier is the last that is let in, so a threshold of 1 would let none in. */
function resolveCount(name: string, count: unknown, rules: LimitRules): CountedCalls {
  const counted = oneOf(`${name}.count`, count ?? 'attempt', ['attempt', 'failure', 'success']);
  if (counted === 'success' && (rules.shortThreshold === 1 || rules.longThreshold === 1))
    throw new SyncGuardConfigError(`${name}.threshold must be at least 2 with \`count: 'success'\`.`, {
      hint: '`threshold: 2` or `limit: 1` lets one success in.',
    });
  return counted;
}

/**
 * Checks `ask`. By default a policy is asked after the guards if it needs the user, or if it has a function, which may
 * need values that guards find. A policy that has a function and counts failures is asked before the guards, so that it
 * counts the calls that guards refuse.
 */
function resolveAsk(
  name: string,
  ask: unknown,
  {
    keyBy,
    count,
    cost,
    dynamicLimit,
    dynamicWindow,
  }: Pick<ResolvedPolicy, 'keyBy' | 'count' | 'cost' | 'dynamicLimit' | 'dynamicWindow'>,
): AskTime {
  const needsUser = isByUser(keyBy);
  const hasFunction = [...[keyBy].flat(), cost, dynamicLimit, dynamicWindow].some(
    (each) => typeof each === 'function',
  );
  const given = oneOf(
    `${name}.ask`,
    ask ?? (needsUser || (hasFunction && count !== 'failure') ? 'after' : 'before'),
    ['before', 'after'],
  );
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

type CheckedTier = { windowMs: number; threshold: number; blockMs: number };
type CheckedTiers = {
  temp: CheckedTier;
  long?: CheckedTier;
  dynamicLimit?: FromContext<number | 'unlimited'>;
  dynamicWindow?: FromContext<number>;
};

function resolvePlain(name: string, algorithm: LimitAlgorithm, given: Given): CheckedTiers {
  if (given.long !== undefined)
    throw new SyncGuardConfigError(`${name}.long needs ${name}.temp instead of ${name}.limit.`);
  const dynamic = typeof given.limit === 'function';
  const dynamicWindow = typeof given.windowMs === 'function';
  return {
    temp: {
      windowMs: dynamicWindow ? 1 : limitDuration(`${name}.windowMs`, given.windowMs),
      threshold: thresholdOf(name, { limit: dynamic ? 1 : given.limit }, algorithm),
      blockMs: given.blockMs === undefined ? 0 : limitDuration(`${name}.blockMs`, given.blockMs),
    },
    ...(dynamic ? { dynamicLimit: given.limit as FromContext<number | 'unlimited'> } : {}),
    ...(dynamicWindow ? { dynamicWindow: given.windowMs as FromContext<number> } : {}),
  };
}

function resolveTiers(name: string, given: Given): CheckedTiers {
  if (given.windowMs !== undefined || given.blockMs !== undefined)
    throw new SyncGuardConfigError(
      `${name}.windowMs and ${name}.blockMs must be inside ${name}.temp, because the policy has \`temp\`.`,
    );
  const temp = resolveTier(`${name}.temp`, given.temp);
  if (given.long === undefined) return { temp };
  const long = resolveTier(`${name}.long`, given.long);
  if (long.windowMs < temp.windowMs)
    throw invalidOption(
      `${name}.long.windowMs`,
      `at least ${name}.temp.windowMs (${temp.windowMs})`,
      long.windowMs,
    );
  return { temp, long };
}

function resolveTier(name: string, tier: unknown): CheckedTier {
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
  longestWindowMs: number,
  longestBlockMs: number,
): Pick<LimitRules, 'factor' | 'maxBlockMs' | 'penaltiesTtlMs'> {
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

function resolveCost(cost: unknown, policy: CostBounds): ResolvedPolicy['cost'] {
  return typeof cost === 'function' ? (cost as FromContext<number>) : validateCost(policy, cost);
}

function resolvePredicate(name: string, value: unknown): IsFailure | undefined {
  if (value === undefined || typeof value === 'function') return value as IsFailure | undefined;
  throw invalidOption(name, 'a function', value);
}
