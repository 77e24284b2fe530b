import { BoundedMap } from '../core/bounded-map.js';
import { describe } from '../core/validate.js';
import { invalidCall, LockError } from './lock.errors.js';

/** A value that a template takes from the arguments of a call. */
interface Value {
  readonly index: number;
  readonly path: readonly string[];
  readonly source: string;
}
type Part = string | Value;

export interface KeyTemplate {
  readonly values: readonly Value[];
  keyOf(args: readonly unknown[]): string;
}

const PLACEHOLDER = /^(\d+)((?:\.[A-Za-z_$][\w$]*)*)$/;
const TOKEN = /\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+/g;

/**
 * Compiles a template like `'order:{0.id}'`. `{0.id}` is the property `id` of the first argument. `{{` and `}}` stand for
 * braces. Two calls with other values never have the same key. A missing value is an error, so a call never locks
 * "undefined".
 *
 * @param place - what errors of the template begin with
 * @throws LockError InvalidArgument: at once for a malformed template, and by `keyOf` for a missing value, which then is
 *   `context.part`
 */
export function compileKeyTemplate(template: string, place: string): KeyTemplate {
  const parts = parse(template, place);
  const encode = encoderFor(separatorsOf(parts, template, place));
  const keyOf = (args: readonly unknown[]): string => {
    let key = '';
    for (const part of parts) key += typeof part === 'string' ? part : encode(textOf(part, args));
    return key;
  };
  return { values: parts.filter((part) => typeof part !== 'string'), keyOf };
}

/** Somebody may build templates from values. */
const MOST_COMPILED = 1_000;
const compiled = new BoundedMap<KeyTemplate>(MOST_COMPILED);

/**
 * Builds the key that `@WithLock(template)` locks, for `lock()`, `acquire()` and every other call with a key.
 *
 * The values are brought to NFC. In them `%`, `:`, braces and control characters are percent-encoded, and what separates
 * two values in the template. So other values always have another key, and all else stands in the key as it is.
 *
 * @param template - `{0}` is the first value, `{1.id}` a property of the second one; a brace that is meant is doubled
 * @param values - each that is used must be a non-empty string, a finite number, a bigint or a boolean
 * @throws LockError InvalidArgument for a malformed template or a missing value
 * @example
 * lockKey('user:{0}', 'ann@x.org') // 'user:ann@x.org'
 * lockKey('seat:{0}:{1}', 'a:b', 7) // 'seat:a%3Ab:7'
 */
export function lockKey(template: string, ...values: readonly unknown[]): string {
  let found = compiled.get(template);
  if (!found) {
    found = compileKeyTemplate(template, 'lockKey()');
    compiled.set(template, found);
  }
  return found.keyOf(values);
}

function parse(template: unknown, place: string): Part[] {
  if (typeof template !== 'string' || template === '')
    throw invalidCall(`${place}: the key template must be a text, got ${describe(template)}.`);
  return [...template.normalize('NFC').matchAll(TOKEN)].map(([token, placeholder]) => {
    if (token === '{{' || token === '}}') return token.charAt(0);
    if (placeholder === undefined && !/[{}]/.test(token)) return token;
    const [, index, path] = PLACEHOLDER.exec(placeholder ?? '') ?? [];
    if (index === undefined || path === undefined)
      throw invalidCall(
        `${place}: the key template "${template}" has a placeholder or brace that cannot be read: "${token}".`,
        'Write {0} for the first argument, {1.user.id} for a property; {{ and }} for braces.',
      );
    return { index: Number(index), path: path.split('.').slice(1), source: token };
  });
}

const ALWAYS_ENCODED = String.raw`%:{}\p{Cc}`;

// What may separate two values, the best first: what is encoded in every value; what is no letter and no digit; any other
// character that no percent-encoding has in it. A mark is no separator, since it may join with the letter before it.
const SEPARATORS = [/[:{}\p{Cc}]/u, /[^\p{L}\p{N}\p{M}%]/u, /[^\p{M}%0-9A-F]/u];

/**
 * Returns one character of the template's text between each two values. Where no value contains it, ("a-b", "c") and ("a",
 * "b-c") are different keys. It is decomposed (NFD), as is what an encoder looks for: NFC may join it with what follows.
 */
function separatorsOf(parts: readonly Part[], template: string, place: string): ReadonlySet<string> {
  const separators = new Set<string>();
  let between: string | undefined;
  for (const part of parts) {
    if (typeof part === 'string') {
      if (between !== undefined) between += part;
      continue;
    }
    const text = between?.normalize('NFD');
    between = '';
    if (text === undefined) continue;
    const separator = SEPARATORS.map((kind) => kind.exec(text)?.[0]).find((found) => found !== undefined);
    if (separator === undefined)
      throw invalidCall(
        `${place}: the key template "${template}" has nothing between two values that separates them.`,
        'Put ":" between them. Digits, the letters A to F and "%" do not separate, because encoded values contain them.',
      );
    separators.add(separator);
  }
  return separators;
}

/** Returns the function that encodes a value, of which most are left as they are. */
function encoderFor(separators: ReadonlySet<string>): (value: string) => string {
  const codes = [...separators].map((char) => `\\u{${char.codePointAt(0)?.toString(16)}}`);
  // A character beyond ASCII may be a letter with a separator in it: "≠" is "=" and a mark.
  const beyond = [...separators].every((char) => ':{}'.includes(char)) ? '' : '\\u{a0}-\\u{10ffff}';
  const suspects = new RegExp(`[${ALWAYS_ENCODED}${codes.join('')}${beyond}]`, 'gu');
  return (value) =>
    value.replace(suspects, (char) =>
      char < '\u00a0' || [...char.normalize('NFD')].some((each) => separators.has(each))
        ? percent(char)
        : char,
    );
}

const percent = (char: string): string => encodeURIComponent(char).replace(/^[^%]$/, hexOf);
const hexOf = (char: string): string => `%${char.charCodeAt(0).toString(16).toUpperCase()}`;

function textOf({ index, path, source }: Value, args: readonly unknown[]): string {
  let value: unknown = args[index];
  for (const property of path) value = (value as Record<string, unknown> | null | undefined)?.[property];
  const usable =
    (typeof value === 'string' && value !== '' && value.isWellFormed()) ||
    (typeof value === 'number' && Number.isFinite(value)) ||
    typeof value === 'bigint' ||
    typeof value === 'boolean';
  if (usable) return String(value).normalize('NFC');
  throw new LockError({
    code: 'InvalidArgument',
    message: `The part ${source} of the key is ${describe(value)}.`,
    hint: 'It must be a non-empty string, a finite number, a bigint or a boolean.',
    context: { part: source },
  });
}
