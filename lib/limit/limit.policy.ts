import { SyncGuardConfigError } from '../syncguard.errors.js';
import { boolean, integer, invalidOption, knownOptions, oneOf } from '../validate.js';
import type {
  AskTime,
  CountedCalls,
  FromContext,
  KeyBy,
  KeyPart,
  LimitAlgorithm,
  LimitPolicy,
  OnError,
  TooManyAttemptsCode,
} from './limit.types.js';

/** Every attempt is kept for as long as it counts: beyond this a counter serves better than a log. */
export const MAX_THRESHOLD = 10_000;
/** The longest window and block: a leap year. No timer waits for either, so it may be longer than one can. */
export const MAX_LIMIT_MS = 366 * 86_400_000;
/** Each attempt of a log is an entry, also those of one call. */
const MAX_LOGGED_COST = 1_000;
/** The limit of a fixed window: like every number of this module, exact in Lua and far from where doubles end. */
export const MAX_COUNTED = 2 ** 31 - 1;

/** The numbers of a policy as every backend takes them. */
export interface LimitRules {
  readonly tempWindowMs: number;
  /** The count that is denied. */
  readonly tempThreshold: number;
  /** 0: no block, and a denied call is not counted. */
  readonly tempBlockMs: number;
  readonly longWindowMs: number;
  /** 0: there is no long tier. */
  readonly longThreshold: number;
  readonly longBlockMs: number;
  readonly factor: number;
  readonly maxBlockMs: number;
  /** How long after a block its strike, and where its window begins afresh, are remembered. */
  readonly recordTtlMs: number;
}

/** A policy that was checked, with its defaults filled in. */
export interface ResolvedPolicy {
  readonly name: string;
  readonly algorithm: LimitAlgorithm;
  readonly rules: LimitRules;
  /** Known only with the request: then `rules` hold a limit of 1 until `withLimit`. */
  readonly dynamicLimit: FromContext<number | 'unlimited'> | undefined;
  /** Known only with the request: then `rules` hold a window of 1 ms until `withWindow`. */
  readonly dynamicWindow: FromContext<number> | undefined;
  readonly cost: number | FromContext<number>;
  readonly keyBy: KeyBy;
  readonly count: CountedCalls;
  readonly isFailure: IsFailure | undefined;
  readonly ask: AskTime;
  /** The policy says so itself. */
  readonly isAskGiven: boolean;
  readonly resetOnSuccess: boolean;
  readonly onError: OnError;
  readonly code: TooManyAttemptsCode;
  /** Known when the app starts: a backend may prepare for it. */
  readonly fixed: boolean;
}

type IsFailure = NonNullable<LimitPolicy['isFailure']>;

/** What a policy says nothing of. */
export interface PolicyDefaults {
  name?: string | undefined;
  onError?: OnError | undefined;
  keyBy?: KeyBy | undefined;
  /** The policy is known when the app starts, and there is a bounded number of its kind. */
  fixed?: boolean | undefined;
}

/** What of a request `keyBy` may name. */
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
 * Checks a policy and fills in its defaults: once, when the app starts or the policy is first seen.
 *
 * @throws SyncGuardConfigError naming policy, option, bound, value and type.
 */
export function resolvePolicy(policy: LimitPolicy, defaults: PolicyDefaults = {}): ResolvedPolicy {
  const given: Given = knownOptions(defaults.name ?? 'policy', policy, OPTIONS);
  const name = resolveName(given.name ?? defaults.name);
  const algorithm = resolveAlgorithm(name, given);
  const { rules, dynamicLimit, dynamicWindow } = resolveRules(name, algorithm, given);
  const count = resolveCount(name, given.count, rules);
  const keyBy = resolveKeyBy(`${name}.keyBy`, given.keyBy ?? defaults.keyBy ?? 'ip');
  const cost = resolveCost(given.cost ?? 1, { name, algorithm, rules, dynamicLimit, count });
  return {
    name,
    algorithm,
    rules,
    dynamicLimit,
    dynamicWindow,
    cost,
    keyBy,
    count,
    ask: resolveAsk(name, given.ask, { keyBy, count, cost, dynamicLimit, dynamicWindow }),
    isAskGiven: given.ask !== undefined,
    isFailure: resolvePredicate(`${name}.isFailure`, given.isFailure),
    resetOnSuccess: boolean(`${name}.resetOnSuccess`, given.resetOnSuccess ?? false),
    onError: resolveOnError(`${name}.onError`, given.onError ?? defaults.onError ?? 'memory'),
    code: oneOf(`${name}.code`, given.code ?? (rules.tempBlockMs > 0 ? 'TooManyAttempts' : 'RateLimited'), [
      'TooManyAttempts',
      'RateLimited',
    ]),
    fixed: (defaults.fixed ?? false) && !dynamicLimit && !dynamicWindow,
  };
}

/** Guards find out who the user is. */
export const isByUser = (keyBy: KeyBy): boolean =>
  ([keyBy].flat() as readonly KeyPart[]).some((part) => typeof part === 'string' && /^user(\.|$)/.test(part));

export const isFixedWindow = ({ algorithm }: Pick<ResolvedPolicy, 'algorithm'>): boolean =>
  algorithm === 'fixed-window';

/** How many more attempts these counts leave. */
export function remainingOf({ rules }: ResolvedPolicy, shortCount: number, longCount: number): number {
  const short = rules.tempThreshold - 1 - shortCount;
  const long = rules.longThreshold > 0 ? rules.longThreshold - 1 - longCount : Infinity;
  return Math.max(0, Math.min(short, long));
}

export const resolveOnError = (name: string, value: unknown): OnError =>
  oneOf(name, value, ['closed', 'memory', 'open']);

/** A cost that came with the call. */
export function validateCost(policy: CostBounds, cost: unknown): number {
  // Without a block a call that is dearer than the limit could never be let in: no Retry-After would be true.
  const { tempBlockMs, tempThreshold, longThreshold } = policy.rules;
  const needsRoom = tempBlockMs === 0 || policy.count === 'success';
  const limit =
    needsRoom && !policy.dynamicLimit ? Math.min(tempThreshold, longThreshold || Infinity) - 1 : Infinity;
  return integer(`${policy.name}.cost`, cost, 1, Math.min(maxCost(policy), limit));
}

type CostBounds = Pick<ResolvedPolicy, 'name' | 'algorithm' | 'rules' | 'dynamicLimit' | 'count'>;

const maxCost = (policy: CostBounds): number => (isFixedWindow(policy) ? MAX_COUNTED : MAX_LOGGED_COST);

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

/** What a client writes into this header a proxy only adds to: who made up a new one would be somebody else. */
export function refuseForwardedFor(name: string, path: string): string {
  if (!/^headers\.(x-forwarded-for|forwarded)$/i.test(path)) return path;
  throw new SyncGuardConfigError(`${name} must not be '${path}': clients choose what stands there.`, {
    hint: "Set Express' `trust proxy` or Fastify's `trustProxy` to your proxies; 'ip' is then the client's address.",
  });
}

/** How long a window or block lasts, in ms. */
export const limitDuration = (name: string, value: unknown): number => integer(name, value, 1, MAX_LIMIT_MS);

function resolveName(name: unknown): string {
  if (typeof name === 'string' && /^[\x20-\x7e]{1,200}$/.test(name)) return name;
  throw invalidOption(
    "a policy's name",
    '1 to 200 printable ASCII characters',
    name,
    'The name keeps the counts of one limiter apart from those of others.',
  );
}

/** What stands beside a fixed window is what it cannot do: better said than ignored. */
function resolveAlgorithm(name: string, given: Given): LimitAlgorithm {
  const algorithm = oneOf(`${name}.algorithm`, given.algorithm ?? 'sliding-log', [
    'sliding-log',
    'fixed-window',
  ]);
  if (algorithm === 'sliding-log') return algorithm;
  const refuse = (option: string): never => {
    throw new SyncGuardConfigError(`${name}.${option} does not go with \`algorithm: 'fixed-window'\`.`, {
      hint: 'A fixed window takes `limit` and `windowMs`; the sliding log, which is the default, blocks and counts failures too.',
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
      tempWindowMs: temp.windowMs,
      tempThreshold: temp.threshold,
      tempBlockMs: temp.blockMs,
      longWindowMs: long?.windowMs ?? 0,
      longThreshold: long?.threshold ?? 0,
      longBlockMs: long?.blockMs ?? 0,
      ...escalation,
    },
  };
}

/** The success that fills a tier is the last that is let in: with a threshold of 1 there would be none. */
function resolveCount(name: string, count: unknown, rules: LimitRules): CountedCalls {
  const counted = oneOf(`${name}.count`, count ?? 'attempt', ['attempt', 'failure', 'success']);
  if (counted === 'success' && (rules.tempThreshold === 1 || rules.longThreshold === 1))
    throw new SyncGuardConfigError(`${name}.threshold must be at least 2 with \`count: 'success'\`.`, {
      hint: '`threshold: 2` lets one success in, and so does `limit: 1`.',
    });
  return counted;
}

/** What functions need is not known; a policy that counts failures sees to what guards refuse. */
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
  const asks = [...[keyBy].flat(), cost, dynamicLimit, dynamicWindow].some(
    (each) => typeof each === 'function',
  );
  const given = oneOf(
    `${name}.ask`,
    ask ?? (needsUser || (asks && count !== 'failure') ? 'after' : 'before'),
    ['before', 'after'],
  );
  if (given === 'before' && needsUser)
    throw new SyncGuardConfigError(
      `${name} counts by the user, whom guards find out: it cannot be asked before them.`,
      {
        code: 'RATE_LIMIT_ASK',
        hint: "Leave out `ask: 'before'`; asked first, it would count all by address.",
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
  if (given.long !== undefined) throw new SyncGuardConfigError(`${name}.long needs \`temp\` beside it.`);
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
    throw new SyncGuardConfigError(`${name}.windowMs and ${name}.blockMs belong into \`temp\`.`);
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
      hint: '`threshold: 5` denies the 5th attempt, `limit: 5` the 6th.',
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
): Pick<LimitRules, 'factor' | 'maxBlockMs' | 'recordTtlMs'> {
  if (escalation === undefined) return { factor: 1, maxBlockMs: MAX_LIMIT_MS, recordTtlMs: longestWindowMs };
  if (longestBlockMs === 0)
    throw new SyncGuardConfigError(`${name} needs a policy that blocks: give it \`blockMs\`.`);
  const given = knownOptions(name, escalation, ['factor', 'maxBlockMs', 'strikeTtlMs']);
  const { factor } = given;
  if (typeof factor !== 'number' || !(factor >= 1 && factor <= 100))
    throw invalidOption(`${name}.factor`, 'a number from 1 to 100', factor);
  return {
    factor,
    maxBlockMs: integer(`${name}.maxBlockMs`, given.maxBlockMs, longestBlockMs, MAX_LIMIT_MS),
    recordTtlMs: integer(`${name}.strikeTtlMs`, given.strikeTtlMs, longestWindowMs, MAX_LIMIT_MS),
  };
}

function resolveCost(cost: unknown, policy: CostBounds): ResolvedPolicy['cost'] {
  return typeof cost === 'function' ? (cost as FromContext<number>) : validateCost(policy, cost);
}

function resolvePredicate(name: string, value: unknown): IsFailure | undefined {
  if (value === undefined || typeof value === 'function') return value as IsFailure | undefined;
  throw invalidOption(name, 'a function', value);
}
