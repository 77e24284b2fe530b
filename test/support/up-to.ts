/**
 * Matches the seconds that are left of a window of so many: as a number, or in a text. A slow machine has used up some of
 * them before it is asked.
 *
 * @example expect(headers.get('retry-after')).toEqual(upTo(60));
 */
export function upTo(secs: number, inText: (left: string) => string = (left) => left): unknown {
  return {
    asymmetricMatch: (actual: unknown): boolean =>
      Array.from({ length: Math.min(10, secs) }, (_, used) => inText(String(secs - used))).includes(
        String(actual),
      ),
    toString: () => `up to ${inText(String(secs))}`,
    getExpectedType: () => 'string or number',
    toAsymmetricMatcher: () => `UpTo<${inText(String(secs))}>`,
  };
}

/** The message of a limit that asks its callers to wait for at most so many seconds. */
export const tryAgainUpTo = (secs: number): unknown =>
  upTo(secs, (left) => `Too many attempts. Try again in ${left} seconds.`);
