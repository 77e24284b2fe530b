/** The paths of the option `limit.allow`, with and without the global prefix. */
export class AllowedPaths {
  readonly #exact: ReadonlySet<string>;
  readonly #starts: readonly string[];

  constructor(patterns: readonly string[], prefix: string) {
    const start = prefix.replace(/^\/*|\/+$/g, '');
    const all = patterns.map(plainPattern).flatMap((each) => (start ? [each, `/${start}${each}`] : [each]));
    this.#exact = new Set(all.filter((each) => !each.endsWith('/*')).map(withoutEndSlash));
    this.#starts = all.filter((each) => each.endsWith('/*')).map((each) => each.slice(0, -1));
  }

  has(url: string): boolean {
    const path = withoutEndSlash(url.replace(/[?#].*$/s, ''));
    return this.#exact.has(path) || this.#starts.some((start) => path.startsWith(start));
  }
}

/**
 * Returns whether a pattern of `limit.allow` may stand for a path that a route has.
 *
 * @param template - the path of the route. What stands behind its first wildcard or optional part may be anything.
 */
export function mayAllow(pattern: string, template: string): boolean {
  const isBelow = plainPattern(pattern).endsWith('/*');
  const asked = partsOf(plainPattern(pattern)).slice(0, isBelow ? -1 : undefined);
  // Nothing else in a pattern is a wildcard or a parameter.
  if (asked.some((part) => part.startsWith(':') || part.includes('*'))) return false;
  const served = partsOf(template);
  const open = served.findIndex((part) => /[*({?]/.test(part));
  const isOpen = open >= 0;
  const length = isOpen ? open : served.length;
  if (asked.slice(0, length).some((part, i) => part !== served[i] && !served[i]?.includes(':'))) return false;
  if (isBelow) return isOpen || length > asked.length;
  return asked.length === length || (isOpen && asked.length > length);
}

/** Wildcards of Express 5 have names: `/*splat`, `/{*splat}`. */
const plainPattern = (pattern: string): string => pattern.replace(/\/(\*\w+|\{\*\w*\})$/, '/*');

const partsOf = (path: string): string[] => path.split('/').filter(Boolean);

const withoutEndSlash = (path: string): string => (path.length > 1 ? path.replace(/\/$/, '') : path);
