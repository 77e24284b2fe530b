import { hash } from 'node:crypto';
import { isPlainKey } from '../core/validate.js';

/** The properties that may hold the id of a user, by the conventions of Passport, JWTs and databases. The first one counts. */
const USER_IDS = ['id', 'sub', 'userId', '_id', 'uid'] as const;

/** Returns the id of `request.user`. If that is not an object, it is the id itself. */
export function userIdOf(user: unknown): string | undefined {
  if (typeof user !== 'object' || user === null) return ownText(user);
  for (const name of USER_IDS) {
    const id = idText((user as Record<string, unknown>)[name]);
    if (id !== undefined) return id;
  }
  return undefined;
}

/** Returns an id of the app as a text. An object counts if it has a `toHexString` or `toString` of its own, as ObjectId does. */
export function idText(value: unknown): string | undefined {
  if (typeof value !== 'object' || value === null) return ownText(value);
  if (value instanceof Uint8Array) return ownText(Buffer.from(value).toString('hex'));
  const { toHexString, toString } = value as { toHexString?: unknown; toString?: unknown };
  const method = typeof toHexString === 'function' ? toHexString : toString;
  // The methods that every object, list, date and error inherits do not return an id.
  if (typeof method !== 'function' || INHERITED.has(method)) return undefined;
  const text: unknown = method.call(value);
  return typeof text === 'string' && !text.startsWith('[object ') ? ownText(text) : undefined;
}

const INHERITED = new Set<unknown>([
  Object.prototype.toString,
  Array.prototype.toString,
  Date.prototype.toString,
  Error.prototype.toString,
]);

/** Returns a text or number of the app unchanged, as a text. What is no number would be the same for all: NaN. */
function ownText(value: unknown): string | undefined {
  if (typeof value === 'bigint' || Number.isFinite(value)) return String(value);
  return typeof value === 'string' && value !== '' ? value.toWellFormed() : undefined;
}

export type Labelled = readonly [label: string, value: string];

/** Joins labelled parts to one key, which is printable ASCII. Different parts never have the same key. */
export function joinKeyParts(parts: readonly Labelled[]): string {
  const key = JSON.stringify(parts);
  if (isPlainKey(key)) return key;
  const plain = JSON.stringify(
    parts.map(([label, value]) => [label, isPlainKey(value) ? value : hash('sha256', value, 'base64url')]),
  );
  return isPlainKey(plain) ? plain : hash('sha256', key, 'base64url');
}
