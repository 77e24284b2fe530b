import { integer, invalidOption, knownOptions, MAX_DURATION_MS, oneOf } from './validate.js';

/** Returns the checked value of an option. Throws an error that begins with its name. */
export type Check<Value> = (name: string, value: unknown) => Value;

/** An option: how it is checked, and what it is where it is not given. */
export interface Option<Value> {
  readonly check: Check<Value>;
  readonly usual?: Value;
}

/** A row for each option of a type, and no other. */
export type RowsOf<Options> = { readonly [Name in keyof Required<Options>]: Option<unknown> };

type ValueOf<Row> =
  | (Row extends { readonly check: Check<infer Value> } ? Value : never)
  | (Row extends { readonly usual: unknown } ? never : undefined);

/** The options of a table, checked, with the defaults. */
export type Resolved<T> = T extends OptionTable<infer Rows> ? ResolvedRows<Rows> : never;

const NONE: readonly string[] = [];

type ResolvedRows<Rows> = { readonly [Name in keyof Rows]: ValueOf<Rows[Name]> };

/**
 * The options of a group, each with its check and its default. What they mean is told by their types, from which
 * `npm run docs:tables` writes docs/options.md.
 */
export class OptionTable<Rows extends Readonly<Record<string, Option<unknown>>>> {
  /** All of them, where none is given. */
  readonly usual: ResolvedRows<Rows>;
  readonly #names: readonly string[];
  // Each call of a feature is checked, so what it may be given is put together once.
  #others = NONE;
  #known: readonly string[];

  constructor(readonly rows: Rows) {
    this.#known = this.#names = Object.keys(rows);
    this.usual = Object.fromEntries(
      Object.entries(rows).map(([name, { usual }]) => [name, usual]),
    ) as ResolvedRows<Rows>;
  }

  /**
   * Returns `usual`, replaced by the options that are given. One that is undefined was not given.
   *
   * @param others - the names of options that may be given too, and are checked elsewhere
   */
  resolve(
    group: string,
    options: unknown,
    usual: ResolvedRows<Rows> = this.usual,
    others: readonly string[] = NONE,
  ): ResolvedRows<Rows> {
    if (others !== this.#others) this.#known = [...this.#names, ...(this.#others = others)];
    const given = knownOptions(group, options, this.#known);
    let resolved: Record<string, unknown> | undefined;
    for (const name of Object.keys(given)) {
      const row = this.rows[name];
      const value = given[name];
      if (row && value !== undefined)
        (resolved ??= { ...usual })[name] = row.check(`${group}.${name}`, value);
    }
    // Most calls give no options, and need no copy.
    return (resolved ?? usual) as ResolvedRows<Rows>;
  }
}

/** An integer with these bounds, both included. */
export const between =
  (min: number, max = MAX_DURATION_MS): Check<number> =>
  (name, value) =>
    integer(name, value, min, max);

/** An integer of at least `min`, or `Infinity` for no limit. */
export const orInfinity =
  (min: number): Check<number> =>
  (name, value) =>
    value === Infinity ? Infinity : integer(name, value, min);

export const among =
  <const Value>(...values: readonly Value[]): Check<Value> =>
  (name, value) =>
    oneOf(name, value, values);

/** A function of this type, as far as can be seen, or undefined. */
export function optionalFunction<Fn>(name: string, value: unknown): Fn | undefined {
  if (value === undefined || typeof value === 'function') return value as Fn | undefined;
  throw invalidOption(name, 'a function', value);
}
