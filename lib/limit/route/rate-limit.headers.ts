import { type BackendDecision, remainingOf } from '../limit.backend.js';
import type { RateLimitHeaders } from '../limit.options.js';
import type { ResolvedPolicy } from '../limit.policy.js';

/** A policy and its decision about a call, as one item of the headers. */
export interface HeaderItem {
  readonly policy: ResolvedPolicy;
  readonly decision: BackendDecision;
}

/**
 * Returns the headers that report to a client what is left.
 *
 * - `draft-10` (draft-ietf-httpapi-ratelimit-headers-10): `RateLimit-Policy: "login";q=4;w=60` and
 *   `RateLimit: "login";r=0;t=900`, with an item for each limit
 * - `legacy`: `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds from now) of the limit that leaves least
 */
export function rateLimitHeaders(
  styles: readonly RateLimitHeaders[],
  items: readonly HeaderItem[],
): [string, string][] {
  if (items.length === 0) return [];
  return styles.flatMap((style) => (style === 'draft-10' ? draftHeaders(items) : legacyHeaders(items)));
}

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

const isTighter = (a: HeaderItem, b: HeaderItem): boolean =>
  remaining(a) === remaining(b) ? resetSecs(a) > resetSecs(b) : remaining(a) < remaining(b);

const quotaOf = ({ policy }: HeaderItem): number => Math.max(0, policy.rules.shortThreshold - 1);

const windowSecs = ({ policy }: HeaderItem): number => Math.ceil(policy.rules.shortWindowMs / 1000);

const remaining = ({ policy, decision }: HeaderItem): number =>
  decision.status === 'denied' ? 0 : remainingOf(policy, decision.shortCount, decision.longCount);

const resetSecs = ({ decision }: HeaderItem): number =>
  Math.ceil((decision.status === 'denied' ? decision.retryAfterMs : decision.resetMs) / 1000);

/** Returns a name as a string of structured fields (RFC 9651). Names are printable ASCII already. */
const quoted = (name: string): string => `"${name.replace(/["\\]/g, '\\$&')}"`;
