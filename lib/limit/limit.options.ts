import type { ExecutionContext } from '@nestjs/common';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { boolean, integer, invalidOption, knownOptions } from '../validate.js';
import { MAX_CHECKS } from './limit.backend.js';
import {
  refuseForwardedFor,
  resolveKeyBy,
  resolveOnError,
  type ResolvedPolicy,
  resolvePolicy,
} from './limit.policy.js';
import { presets } from './presets.js';
import type { ContextResolver, FromContext, KeyBy, LimitPolicy, OnError } from './limit.types.js';

/** Named policies, for `@RateLimit('name')` and `AbuseLimiterService`. A list is several limits under one name. */
export type LimitPolicies = Readonly<Record<string, LimitPolicy | readonly LimitPolicy[]>>;

/** Which headers tell a client what is left: the IETF draft of that revision, or `X-RateLimit-*`. */
export type RateLimitHeaders = 'draft-10' | 'legacy';

/** Whether a request is not limited at all: a function, or the class of a provider that Nest injects. */
export type SkipIf =
  | ((context: ExecutionContext) => boolean | Promise<boolean>)
  | (new (...args: never[]) => ContextResolver<boolean>);

/** Defaults of every policy, and what the guard does for all of them. */
export interface LimitDefaults {
  /** What happens while Redis does not answer. Default: `'memory'`. */
  onError?: OnError;
  /** The longest wait for Redis' answer, in ms, 1 to 60,000. Default: 250. */
  commandTimeoutMs?: number;
  /** How long a block is remembered in this process, so that it costs no round trip; 0 to 60,000. Default: 1,000. */
  denyCacheMs?: number;
  /** Headers that tell what is left; `Retry-After` comes with every 429 anyway. Default: none. */
  headers?: RateLimitHeaders | readonly RateLimitHeaders[] | false;
  /** Who a request is counted for, where its policy does not say. Default: `'ip'`. */
  keyBy?: KeyBy;
  /**
   * The id of the user, where `keyBy` has `'user'`: a function, or the class of a provider that Nest injects. Default: of
   * `request.user` the first of `id`, `sub`, `userId`, `_id` and `uid`. An id is a text, a number, or an object with a
   * `toHexString` or `toString` of its own; undefined counts by address.
   *
   * @example user: (context) => context.switchToHttp().getRequest().auth?.account
   */
  user?: FromContext<unknown>;
  /**
   * Where the client's address is, wherever `'ip'` is used: a header that a CDN writes, as `'headers.cf-connecting-ip'`,
   * or a function. Only one valid address is taken; else the connection's counts, with one warning. Whoever reaches the
   * origin past the CDN writes the header himself: let it accept the CDN alone. Default: what the HTTP server says,
   * which knows `X-Forwarded-For` by Express' `trust proxy` and Fastify's `trustProxy`.
   */
  address?: `headers.${string}` | FromContext<string | undefined>;
  /** How much of an IPv6 address is one client, in bits, 32 to 128. Default: 64. */
  ipv6Subnet?: number;
  /** Requests that are not limited at all. */
  skipIf?: SkipIf;
  /** Paths that are never limited, such as health probes: `'/health'`, or `'/internal/*'` with all below. */
  allow?: readonly string[];
  /**
   * Whether a `@RateLimit` or `@SkipRateLimit` that limits nothing, as another decorator has lost it or nothing asks
   * guards there, fails the boot (RATE_LIMIT_LOST, RATE_LIMIT_NO_ROUTE). False makes warnings of both: for a migration,
   * or a test that replaces methods. Default: true.
   */
  strictBoot?: boolean;
}

export interface ResolvedLimitOptions {
  readonly onError: OnError;
  readonly commandTimeoutMs: number;
  readonly denyCacheMs: number;
  readonly headers: readonly RateLimitHeaders[];
  readonly keyBy: KeyBy;
  readonly user: FromContext<unknown> | undefined;
  readonly address: string | FromContext<string | undefined> | undefined;
  readonly ipv6Subnet: number;
  readonly skipIf: SkipIf | undefined;
  readonly allow: readonly string[];
  readonly strictBoot: boolean;
}

const NAMES = [
  'onError',
  'commandTimeoutMs',
  'denyCacheMs',
  'headers',
  'keyBy',
  'user',
  'address',
  'ipv6Subnet',
  'skipIf',
  'allow',
  'strictBoot',
] as const satisfies readonly (keyof LimitDefaults)[];

/** Checks the `limit` option and fills in its defaults. */
export function resolveLimitDefaults(options: unknown = {}): ResolvedLimitOptions {
  const given = knownOptions('limit', options, NAMES);
  return {
    onError: resolveOnError('limit.onError', given.onError ?? 'memory'),
    commandTimeoutMs: integer('limit.commandTimeoutMs', given.commandTimeoutMs ?? 250, 1, 60_000),
    denyCacheMs: integer('limit.denyCacheMs', given.denyCacheMs ?? 1_000, 0, 60_000),
    headers: resolveHeaders(given.headers ?? false),
    keyBy: resolveKeyBy('limit.keyBy', given.keyBy ?? 'ip'),
    user: resolveFunction('limit.user', given.user) as FromContext<unknown> | undefined,
    address: resolveAddress(given.address),
    ipv6Subnet: integer('limit.ipv6Subnet', given.ipv6Subnet ?? 64, 32, 128),
    skipIf: resolveFunction('limit.skipIf', given.skipIf) as SkipIf | undefined,
    allow: resolveAllow(given.allow ?? []),
    strictBoot: boolean('limit.strictBoot', given.strictBoot ?? true),
  };
}

/** Checks the `limits` option: every policy, under the name that it is called by. The presets are there as well. */
export function resolveLimits(
  limits: unknown,
  defaults: ResolvedLimitOptions,
): ReadonlyMap<string, readonly ResolvedPolicy[]> {
  const names = typeof limits === 'object' && limits !== null ? Object.keys(limits) : [];
  const given = knownOptions('limits', limits, names) as LimitPolicies;
  return new Map(
    Object.entries({ ...presets, ...given }).map(([name, policy]) => [
      name,
      resolvePolicies(policy, { ...defaults, name, fixed: true }),
    ]),
  );
}

/** One policy or a list of them; in a list those without a name are told apart by their place. */
export function resolvePolicies(
  policies: LimitPolicy | readonly LimitPolicy[],
  defaults: Parameters<typeof resolvePolicy>[1] & { name: string },
): readonly ResolvedPolicy[] {
  if (!Array.isArray(policies)) return [resolvePolicy(policies as LimitPolicy, defaults)];
  const list = policies as readonly LimitPolicy[];
  if (list.length === 0 || list.length > MAX_CHECKS)
    throw new SyncGuardConfigError(
      `${defaults.name} must hold 1 to ${MAX_CHECKS} policies, got ${list.length}.`,
    );
  return list.map((policy, i) =>
    resolvePolicy(policy, { ...defaults, name: i === 0 ? defaults.name : `${defaults.name}#${i + 1}` }),
  );
}

function resolveHeaders(headers: unknown): readonly RateLimitHeaders[] {
  if (headers === false) return [];
  const list: readonly unknown[] = Array.isArray(headers) ? headers : [headers];
  if (list.every((each) => each === 'draft-10' || each === 'legacy')) return list;
  throw invalidOption('limit.headers', `'draft-10', 'legacy', a list of these, or false`, headers);
}

function resolveFunction(name: string, value: unknown): unknown {
  if (value === undefined || typeof value === 'function') return value;
  throw invalidOption(name, 'a function', value);
}

function resolveAddress(address: unknown): ResolvedLimitOptions['address'] {
  if (typeof address === 'function') return address as FromContext<string | undefined>;
  if (address === undefined) return undefined;
  if (typeof address !== 'string' || !/^headers\.[^.\s]+$/.test(address))
    throw invalidOption(
      'limit.address',
      "a header such as 'headers.cf-connecting-ip', or a function",
      address,
    );
  // Node lower-cases the names of headers.
  return refuseForwardedFor('limit.address', address.toLowerCase());
}

function resolveAllow(allow: unknown): readonly string[] {
  if (Array.isArray(allow) && allow.every((path) => typeof path === 'string' && path.startsWith('/')))
    return allow as string[];
  throw invalidOption('limit.allow', `a list of paths that begin with "/"`, allow);
}
