import { joinKeyParts } from '../../transport/request-parts.js';
import { missingPartOf } from '../../core/validate.js';
import { invalidCall, OnceError } from '../once.errors.js';
import type { OnceCaller } from '../once.options.js';

const MOST_CHARACTERS = 255;
const VISIBLE = /^[\x21-\x7e]+$/;
/** A string of a structured field (RFC 9651). */
const QUOTED = /^"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"$/;

const invalid = (message: string): OnceError => new OnceError({ code: 'OnceKeyInvalid', message });

export const keyMissing = (what: string): OnceError =>
  new OnceError({ code: 'OnceKeyMissing', message: `The request has no ${what}.` });

/** Returns the key in a header: a string of a structured field, or the same bare. */
export function keyInHeader(value: unknown, header: string): string {
  const text = typeof value === 'string' ? value.trim() : '';
  const key = text.startsWith('"') ? QUOTED.exec(text)?.[1]?.replace(/\\(["\\])/g, '$1') : text;
  if (key !== undefined && key.length <= MOST_CHARACTERS && VISIBLE.test(key)) return present(key, header);
  throw invalid(`The header ${header} must be one key of 1 to ${MOST_CHARACTERS} visible ASCII characters.`);
}

/** Refuses a key that was built from a missing value, as clients send `undefined`: it would be that of all their calls. */
function present(key: string, what: string): string {
  if (missingPartOf(`:${key}`) === undefined) return key;
  throw invalid(`${what} has a part that stands for a missing value.`);
}

/** Returns the value at a path as it is. Only own properties count, as a client may send `{"__proto__": ...}`. */
export function valueAt(holder: object, path: string): unknown {
  const [part = '', ...fields] = path.split('.');
  let value: unknown = (holder as Record<string, unknown>)[part];
  for (const field of fields) {
    if (typeof value !== 'object' || value === null) return undefined;
    // Node.js lower-cases the names of headers.
    const name = part === 'headers' ? field.toLowerCase() : field;
    value = Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined;
  }
  return value;
}

/** Returns a key that a path or a function has found. Undefined if it has found none. */
export function keyText(value: unknown, what: string): string | undefined {
  if (value === undefined || value === null) return undefined;
  if (typeof value === 'string' && value !== '' && value.isWellFormed()) return present(value, what);
  // Beyond those, two numbers of a client are one in JavaScript.
  if (typeof value === 'bigint' || (typeof value === 'number' && Number.isSafeInteger(value)))
    return String(value);
  throw invalid(`${what} must be a text or a safe integer.`);
}

/** What names the key of a call over HTTP. */
export interface OnceKeyParts {
  /** Method and path of the route, as in `POST /orders/:id`. */
  route: string;
  /** What `once.user` returns. None where `scope` is `'public'`, or the key is not that of the header. */
  caller?: OnceCaller;
  /** The key as the client has sent it. */
  key: string;
}

/**
 * Returns the key of a call that came over HTTP, for `get()`, `settle()` and `forget()`.
 *
 * @example
 * await once.settle(onceKey({ route: 'POST /orders/:id/pay', caller: user.id, key }), { value: { paid: true } });
 */
export function onceKey({ route, caller, key }: OnceKeyParts): string {
  if (typeof route !== 'string' || typeof key !== 'string' || key === '')
    throw invalidCall('onceKey() needs a route and a key.');
  const callers =
    caller === undefined ? [] : [caller].flat().map((each): [string, string] => ['caller', String(each)]);
  return joinKeyParts(
    [['route', route], ...callers, ['key', key]].map(([name, text]) => [
      name as string,
      (text as string).normalize('NFC'),
    ]),
  );
}
