import type { LimitOutcome } from './limit.backend.js';
import type { RateLimitHeaders } from './limit.options.js';
import { remainingOf, type ResolvedPolicy } from './limit.policy.js';

/** A limit and what it said, for the headers that tell a client what is left. */
export interface Answer {
  readonly policy: ResolvedPolicy;
  readonly outcome: LimitOutcome;
}

/**
 * - `draft-10` (draft-ietf-httpapi-ratelimit-headers-10): `RateLimit-Policy: "login";q=4;w=60` and
 *   `RateLimit: "login";r=0;t=900`, an item for each limit;
 * - `legacy`: `X-RateLimit-Limit`, `-Remaining`, `-Reset` (seconds from now), of the limit that leaves least.
 */
export function rateLimitHeaders(
  styles: readonly RateLimitHeaders[],
  answers: readonly Answer[],
): [string, string][] {
  if (answers.length === 0) return [];
  return styles.flatMap((style) => (style === 'draft-10' ? draftHeaders(answers) : legacyHeaders(answers)));
}

function draftHeaders(answers: readonly Answer[]): [string, string][] {
  const named = (answer: Answer, parameters: string): string => `${quoted(answer.policy.name)};${parameters}`;
  return [
    [
      'RateLimit-Policy',
      answers.map((each) => named(each, `q=${quotaOf(each)};w=${windowSecs(each)}`)).join(', '),
    ],
    ['RateLimit', answers.map((each) => named(each, `r=${remaining(each)};t=${resetSecs(each)}`)).join(', ')],
  ];
}

function legacyHeaders(answers: readonly Answer[]): [string, string][] {
  const tightest = answers.reduce((a, b) => (isTighter(b, a) ? b : a));
  return [
    ['X-RateLimit-Limit', String(quotaOf(tightest))],
    ['X-RateLimit-Remaining', String(remaining(tightest))],
    ['X-RateLimit-Reset', String(resetSecs(tightest))],
  ];
}

const isTighter = (a: Answer, b: Answer): boolean =>
  remaining(a) === remaining(b) ? resetSecs(a) > resetSecs(b) : remaining(a) < remaining(b);

const quotaOf = ({ policy }: Answer): number => Math.max(0, policy.rules.tempThreshold - 1);

const windowSecs = ({ policy }: Answer): number => Math.ceil(policy.rules.tempWindowMs / 1000);

const remaining = ({ policy, outcome }: Answer): number =>
  outcome.status === 'denied' ? 0 : remainingOf(policy, outcome.shortCount, outcome.longCount);

const resetSecs = ({ outcome }: Answer): number =>
  Math.ceil((outcome.status === 'denied' ? outcome.retryAfterMs : outcome.resetMs) / 1000);

/** A string of structured fields (RFC 9651): names are printable ASCII. */
const quoted = (name: string): string => `"${name.replace(/["\\]/g, '\\$&')}"`;
