import { type CallOptions, callOptions, integer, invalidOption } from './validate.js';

/** Which page of a list is wanted. */
export interface PageOptions extends CallOptions {
  /** The `cursor` of the page before, which may be part of a URL. Default: the first page. */
  readonly cursor?: string | undefined;
  /**
   * About how many items a page has, 1 to 1,000. It may have a few more, and while much else is walked past it has fewer, or
   * none. Default: 100.
   */
  readonly limit?: number | undefined;
}

/**
 * A page of a list, in no particular order. What exists during the whole walk is on one of its pages at least, and may be on
 * two.
 */
export interface Page<Item> {
  /** What was found. */
  readonly items: readonly Item[];
  /** Leads to the next page. Undefined on the last one. */
  readonly cursor?: string;
}

export type ResolvedPageOptions = CallOptions & {
  readonly cursor: string | undefined;
  readonly limit: number;
};

/** Checks the options of a list, which has the `known` ones too. */
export function pageOptions<Options extends PageOptions>(
  options: Options,
  known: readonly Exclude<keyof Options & string, keyof PageOptions>[],
): ResolvedPageOptions {
  const names = [...known, 'cursor', 'limit'] as Exclude<keyof Options & string, 'signal'>[];
  const { cursor, limit = 100, signal } = callOptions(options, names);
  if (cursor !== undefined && (typeof cursor !== 'string' || cursor === '')) throw wrongCursor(cursor);
  return { cursor, limit: integer('limit', limit, 1, 1_000), signal };
}

export const wrongCursor = (cursor: unknown): Error =>
  invalidOption('cursor', 'the cursor of a page of this list', cursor);

export const pageOf = <Item>(items: readonly Item[], cursor: string | undefined): Page<Item> =>
  cursor === undefined ? { items } : { items, cursor };

/** Returns a page of names that this process has, in the order of the alphabet. The cursor is the last of them. */
export function pageOfNames(
  names: Iterable<string>,
  { cursor, limit }: ResolvedPageOptions,
): { names: string[]; cursor: string | undefined } {
  const after = cursor === undefined ? '' : Buffer.from(cursor, 'base64url').toString();
  const left = [...names].filter((name) => name > after).sort();
  const page = left.slice(0, limit);
  const isLast = page.length === left.length;
  return {
    names: page,
    cursor: isLast ? undefined : Buffer.from(page.at(-1) as string).toString('base64url'),
  };
}
