import type { CallDecision } from '../decisions.js';
import type { RateLimitHeaders } from '../limit.options.js';
import { nameWithoutShadow, type ResolvedPolicy } from '../limit.policy.js';
import type { LimiterDecision } from '../limit.types.js';
import { rawOf } from './call-end.js';
import type { ResponseLike } from './limited-call.js';

/** A policy and its decision about a call, as one item of the headers. */
export interface HeaderItem {
  readonly policy: ResolvedPolicy;
  readonly decision: LimiterDecision;
}

/**
 * Returns the headers that report to a client what is left.
 *
 * - `draft-10` (draft-ietf-httpapi-ratelimit-headers-10): `RateLimit-Policy: "login";q=4;w=60` and
 *   `RateLimit: "login";r=0;t=900`, with an item for each limit
 * - `legacy`: `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds from now) of the limit that leaves least
 *
 * Of policies that are tried `RateLimit-Shadow`: `"login";r=3;t=60`, and `"login";r=0;t=60;denied` if one would have denied the call.
 */
export function rateLimitHeaders(
  styles: readonly RateLimitHeaders[],
  items: readonly HeaderItem[],
): [string, string][] {
  if (items.some(isShadow)) {
    const live = items.filter((item) => !isShadow(item));
    return [...rateLimitHeaders(styles, live), shadowHeader(items.filter(isShadow))];
  }
  if (items.length === 0) return [];
  return styles.flatMap((style) => (style === 'draft-10' ? draftHeaders(items) : legacyHeaders(items)));
}

const isShadow = ({ policy }: HeaderItem): boolean => policy.shadow;

function draftHeaders(items: readonly HeaderItem[]): [string, string][] {
  const named = (item: HeaderItem, parameters: string): string => `${quoted(item.policy.name)};${parameters}`;
  return [
    [
      'RateLimit-Policy',
      items.map((each) => named(each, `q=${quotaOf(each)};w=${windowSecs(each)}`)).join(', '),
    ],
    ['RateLimit', items.map((each) => named(each, `r=${remaining(each)};t=${resetSecs(each)}`)).join(', ')],
  ];
}

function legacyHeaders(items: readonly HeaderItem[]): [string, string][] {
  const tightest = items.reduce((a, b) => (isTighter(b, a) ? b : a));
  return [
    ['X-RateLimit-Limit', String(quotaOf(tightest))],
    ['X-RateLimit-Remaining', String(remaining(tightest))],
    ['X-RateLimit-Reset', String(resetSecs(tightest))],
  ];
}

function shadowHeader(items: readonly HeaderItem[]): [string, string] {
  const told = items.map((item) => {
    const { policy, decision } = item;
    const left = `${quoted(nameWithoutShadow(policy.name))};r=${remaining(item)};t=${resetSecs(item)}`;
    return 'shadow' in decision ? `${left};denied` : left;
  });
  return ['RateLimit-Shadow', told.join(', ')];
}

const isTighter = (a: HeaderItem, b: HeaderItem): boolean =>
  remaining(a) === remaining(b) ? resetSecs(a) > resetSecs(b) : remaining(a) < remaining(b);

const quotaOf = ({ policy }: HeaderItem): number => Math.max(0, policy.rules.tiers[0].threshold - 1);

const windowSecs = ({ policy }: HeaderItem): number => Math.ceil(policy.rules.tiers[0].windowMs / 1000);

const remaining = ({ decision }: HeaderItem): number => (decision.allowed ? decision.remaining : 0);

const resetSecs = ({ decision }: HeaderItem): number =>
  decision.allowed ? Math.ceil(decision.resetMs / 1000) : decision.retryAfterSecs;

/** Returns a name as a string of structured fields (RFC 9651). Names are printable ASCII already. */
const quoted = (name: string): string => `"${name.replace(/["\\]/g, '\\$&')}"`;

/**
 * A property of a response of Node.js, since a middleware of Fastify has no other: the header items of all calls that it answers,
 * by the name of their policy.
 */
const HEADER_ITEMS = Symbol.for('syncguard:header-items');

interface WithHeaderItems {
  [HEADER_ITEMS]?: Map<string, HeaderItem>;
}

/** Sets the headers of one decision on its response, after those of earlier decisions. */
export function setLimitHeaders(
  response: ResponseLike,
  { checks, decisions }: CallDecision,
  styles: readonly RateLimitHeaders[],
): void {
  const items = ((rawOf(response) as unknown as WithHeaderItems)[HEADER_ITEMS] ??= new Map<
    string,
    HeaderItem
  >());
  checks.forEach(({ policy, cost }, i) => {
    const decision = decisions[i];
    // A call that is allowed uncounted leaves nothing to report.
    const shows = decision && (!decision.allowed || cost > 0 || policy.shadow);
    if (shows && !policy.isWatching) items.set(policy.name, { policy, decision });
  });
  for (const [name, value] of rateLimitHeaders(styles, [...items.values()])) setHeader(response, name, value);
}

/** The responses of Express and Fastify have `header`. A GraphQL context may hold a response of Node.js, or a sent one. */
export function setHeader(response: ResponseLike, name: string, value: string): void {
  if (rawOf(response).headersSent) return;
  if (response.header) response.header(name, value);
  else response.setHeader?.(name, value);
}
