import { SyncGuardConfigError } from '../core/errors.js';
import { between, optionalFunction, OptionTable, type Resolved, type RowsOf } from '../core/option-table.js';
import { boolean, invalidOption, knownOptions } from '../core/validate.js';
import { MAX_CHECKS } from './limit.backend.js';
import { refuseForwardedFor, resolveKeyBy } from './limit.key-by.js';
import { resolveOnError, type ResolvedPolicy, resolvePolicy } from './limit.policy.js';
import { presets } from './presets.js';
import type { FromContext, KeyBy, LimitPolicy, Normalize } from './policy.types.js';
import type { OnError } from './limit.types.js';

/** Policies by name, for `@RateLimit('name')` and `AbuseLimiterService`. A list is several limits under one name. */
export type LimitPolicies = Readonly<Record<string, LimitPolicy | readonly LimitPolicy[]>>;

/** The headers that report how many calls are left: those of the IETF draft, revision 10, or `X-RateLimit-*`. */
export type RateLimitHeaders = 'draft-10' | 'legacy';

/** Returns true for a request that is not limited at all: a function, or the class of a provider that Nest injects. */
export type SkipIf = FromContext<boolean>;

/** Defaults of all policies, and settings of the guard. */
export interface LimitDefaults {
  /** What a limit does while Redis does not answer. Default: `'memory'`. */
  onError?: OnError;
  /** The longest wait for a reply of Redis, in ms, 1 to 60,000. Default: 250. */
  commandTimeoutMs?: number;
  /**
   * How long the deny cache of this process remembers a block, in ms, 0 to 60,000. Calls that it denies cost no round trip. 0
   * turns it off. Default: 1,000.
   */
  denyCacheMs?: number;
  /**
   * How long a call of a policy that counts failures or successes is kept in flight, in ms, 60,000 to 86,400,000. Its process
   * renews it meanwhile. A call that has not ended by then counts, and no longer takes up room as a call in flight. Raise it
   * if handlers of such routes run for longer. Default: 600,000.
   */
  maxFlightMs?: number;
  /** The headers that report how many calls are left. Every 429 has `Retry-After`, whatever this option is. Default: none. */
  headers?: RateLimitHeaders | readonly RateLimitHeaders[] | false;
  /** The key that requests are counted by, if the policy has no `keyBy`. Default: `'ip'`. */
  keyBy?: KeyBy;
  /**
   * Returns the id of the user, for a `keyBy` with `'user'`: a function, or the class of a provider that Nest injects. An id
   * is a text, a number, or an object with a `toHexString` or `toString` of its own. A request without an id is counted by
   * address. Default: the first of `id`, `sub`, `userId`, `_id` and `uid` in `request.user`.
   *
   * @example user: (context) => context.switchToHttp().getRequest().auth?.account
   */
  user?: FromContext<unknown>;
  /**
   * Where `'ip'` finds the address of the client: a header that a CDN writes, such as `'headers.cf-connecting-ip'`, or
   * a function. If there is not exactly one valid address, the address of the connection counts, with one warning. A
   * client that reaches the server without the CDN can write the header itself, so the server must accept connections
   * of the CDN only. Default: the address that Express or Fastify finds. With `trust proxy` or `trustProxy` they read
   * `X-Forwarded-For`.
   */
  address?: `headers.${string}` | FromContext<string | undefined>;
  /**
   * The length of the IPv6 subnet that counts as one client, in bits, 32 to 128. Many providers give each customer a /56,
   * which is 256 subnets of 64 bits: 56 counts them as one. Default: 64.
   */
  ipv6Subnet?: number;
  /**
   * Replaces how a value of a client is compared, for parts of `keyBy` in the body, query, params, headers and cookies.
   * Without it, or where it returns undefined: invisible characters and blanks are left out, the rest is normalized (NFKC)
   * and lower-cased, headers keep their case. Where presets count by an account, accents are left out too. What is not a
   * text, number, boolean or a list of one such counts together with all such values (RATE_LIMIT_NO_TEXT).
   *
   * @example normalize: (_value, part, folded) => (part === 'body.email' ? folded?.replace(/\+[^@]*@/, '@') : undefined)
   */
  normalize?: Normalize;
  /** Requests that are not limited at all. */
  skipIf?: SkipIf;
  /** Paths that are never limited, such as `'/health'`. `'/internal/*'` stands for all paths below `/internal/`. */
  allow?: readonly string[];
  /**
   * Whether a `@RateLimit` or `@SkipRateLimit` without effect stops the boot: one that another decorator has removed
   * (RATE_LIMIT_LOST), or one that stands where Nest asks no guards (RATE_LIMIT_NO_ROUTE). With false both are warnings, for
   * a migration or for tests that replace methods. Default: true.
   */
  strictBoot?: boolean;
}

const OPTIONS = new OptionTable({
  onError: { check: resolveOnError, usual: 'memory' },
  commandTimeoutMs: { check: between(1, 60_000), usual: 250 },
  denyCacheMs: { check: between(0, 60_000), usual: 1_000 },
  maxFlightMs: { check: between(60_000, 86_400_000), usual: 600_000 },
  headers: { check: resolveHeaders, usual: [] },
  keyBy: { check: resolveKeyBy, usual: 'ip' },
  user: { check: optionalFunction<FromContext<unknown>> },
  address: { check: resolveAddress },
  ipv6Subnet: { check: between(32, 128), usual: 64 },
  normalize: { check: optionalFunction<Normalize> },
  skipIf: { check: optionalFunction<SkipIf> },
  allow: { check: resolveAllow, usual: [] },
  strictBoot: { check: boolean, usual: true },
} satisfies RowsOf<LimitDefaults>);

export type ResolvedLimitOptions = Resolved<typeof OPTIONS>;

/** What the module has of its options `limit` and `limits`. */
export interface ResolvedLimits {
  readonly limit: ResolvedLimitOptions;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
}

/** Checks the `limit` group of the module's options and fills in the defaults. */
export const resolveLimitDefaults = (options?: unknown): ResolvedLimitOptions =>
  OPTIONS.resolve('limit', options);

/** Checks the `limits` option. Returns its policies and the presets by their keys. Errors name them `limits.x`. */
export function resolveLimits(limits: unknown, defaults: ResolvedLimitOptions): ResolvedLimits['limits'] {
  const names = typeof limits === 'object' && limits !== null ? Object.keys(limits) : [];
  const given = knownOptions('limits', limits, names) as LimitPolicies;
  return new Map(
    Object.entries({ ...presets, ...given }).map(([name, policy]) => [
      name,
      resolvePolicies(policy, { ...defaults, name, path: `limits.${name}`, isStatic: true }),
    ]),
  );
}

/**
 * Checks one policy or a list. In a list named `x`, policies without a name get the names `x`, `x#2` and so on, by their
 * places in the list.
 */
export function resolvePolicies(
  policies: LimitPolicy | readonly LimitPolicy[],
  defaults: Parameters<typeof resolvePolicy>[1] & { name: string },
): readonly ResolvedPolicy[] {
  if (!Array.isArray(policies)) return [resolvePolicy(policies as LimitPolicy, defaults)];
  const list = policies as readonly LimitPolicy[];
  const { name, path = name } = defaults;
  if (list.length === 0 || list.length > MAX_CHECKS)
    throw new SyncGuardConfigError(
      `The list of policies ${path} must have 1 to ${MAX_CHECKS} policies, got ${list.length}.`,
    );
  return list.map((policy, i) =>
    resolvePolicy(policy, { ...defaults, name: i === 0 ? name : `${name}#${i + 1}`, path: `${path}[${i}]` }),
  );
}

function resolveHeaders(name: string, headers: unknown): readonly RateLimitHeaders[] {
  if (headers === false) return [];
  const list: readonly unknown[] = Array.isArray(headers) ? headers : [headers];
  if (list.every((each) => each === 'draft-10' || each === 'legacy')) return list;
  throw invalidOption(name, `'draft-10', 'legacy', a list of these, or false`, headers);
}

function resolveAddress(name: string, address: unknown): string | FromContext<string | undefined> {
  if (typeof address === 'function') return address as FromContext<string | undefined>;
  if (typeof address !== 'string' || !/^headers\.[^.\s]+$/.test(address))
    throw invalidOption(name, "a header such as 'headers.cf-connecting-ip', or a function", address);
  // Node.js lower-cases the names of headers.
  return refuseForwardedFor(name, address.toLowerCase());
}

function resolveAllow(name: string, allow: unknown): readonly string[] {
  if (Array.isArray(allow) && allow.every((path) => typeof path === 'string' && path.startsWith('/')))
    return allow as string[];
  throw invalidOption(
    name,
    `a list of paths that begin with "/"`,
    allow,
    'A function goes into `limit.skipIf`.',
  );
}
