import { hash } from 'node:crypto';
import { isIP, isIPv4, isIPv6 } from 'node:net';
import { MAX_KEY_BYTES } from '../../core/validate.js';

/** Longer values are hashed without being normalized. No e-mail address is that long. */
const MAX_VALUE_LENGTH = 1_024;

/**
 * Returns an address in the form that the guard counts by: lower-case, without port and zone. IPv4 inside IPv6 becomes
 * IPv4. IPv6 becomes its subnet, because one client can use all addresses of its subnet.
 *
 * @param ipv6Subnet - the length of the subnet of one client, in bits, 32 to 128. Default: 64, as in `limit.ipv6Subnet`
 * @example normalizeAddress('[2001:DB8::1]:443') // '2001:db8:0:0::/64'
 */
export function normalizeAddress(address: string, ipv6Subnet = 64): string {
  const bare = withoutPort(address.trim()).replace(/%.*$/, '').toLowerCase();
  if (isIPv4(bare) || !isIPv6(bare)) return bare;
  const groups = groupsOf(bare);
  if (groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff) return asIPv4(groups);
  return `${maskTo(groups, ipv6Subnet)
    .map((group) => group.toString(16))
    .join(':')}${ipv6Subnet <= 112 ? '::' : ''}/${ipv6Subnet}`;
}

/** Returns the normalized address if the text is exactly one valid address. Otherwise returns undefined. */
export function singleAddress(text: unknown, ipv6Subnet: number): string | undefined {
  if (typeof text !== 'string' || isIP(withoutPort(text.trim())) === 0) return undefined;
  return normalizeAddress(text, ipv6Subnet);
}

function withoutPort(address: string): string {
  const bracketed = /^\[([^\]]*)\](?::\d+)?$/.exec(address);
  if (bracketed) return bracketed[1] ?? '';
  return /^[\d.]+:\d+$/.test(address) ? address.slice(0, address.indexOf(':')) : address;
}

/** Returns the eight groups of a valid IPv6 address. */
function groupsOf(address: string): number[] {
  const dotted = /^(.*:)(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(address);
  const text = dotted ? `${dotted[1]}${pair(dotted[2], dotted[3])}:${pair(dotted[4], dotted[5])}` : address;
  const [head = '', tail] = text.split('::');
  const start = head === '' ? [] : head.split(':');
  const end = tail ? tail.split(':') : [];
  const zeros = Array<string>(tail === undefined ? 0 : 8 - start.length - end.length).fill('0');
  return [...start, ...zeros, ...end].map((group) => parseInt(group, 16));
}

const pair = (high: string | undefined, low: string | undefined): string =>
  (Number(high) * 256 + Number(low)).toString(16);

const asIPv4 = (groups: readonly number[]): string =>
  groups
    .slice(6)
    .flatMap((group) => [group >> 8, group & 255])
    .join('.');

/** Returns the groups that the subnet reaches into. The bits outside of the subnet are 0. */
function maskTo(groups: readonly number[], bits: number): number[] {
  return groups.slice(0, Math.ceil(bits / 16)).map((group, i) => {
    const kept = Math.min(16, bits - 16 * i);
    return group & (0xffff << (16 - kept)) & 0xffff;
  });
}

/**
 * Returns the value at a path in a request, or undefined if there is none. A value that the client sent is normalized for
 * comparison. A value of `user` or `session` is an id of the app and stays unchanged.
 */
export function valueAt(request: object, path: string): string | undefined {
  const [part = '', ...fields] = path.split('.');
  const isOurs = part === 'user' || part === 'session';
  let value: unknown = (request as Record<string, unknown>)[part];
  for (const field of fields) {
    if (typeof value !== 'object' || value === null) return undefined;
    // Node.js lower-cases the names of headers.
    const name = part === 'headers' ? field.toLowerCase() : field;
    // A client may send `{"__proto__": ...}`, so only own properties count. In objects of the app, inherited getters count too.
    value = isOurs || Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined;
  }
  return isOurs ? idText(value) : clientText(value);
}

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

/** Returns a text or number of the app unchanged, as a text. */
function ownText(value: unknown): string | undefined {
  if (typeof value === 'number' || typeof value === 'bigint') return String(value);
  return typeof value === 'string' && value !== '' ? value.toWellFormed() : undefined;
}

/**
 * Returns a value that a client sent, so that different spellings of one e-mail address are the same text. A value of
 * another type becomes JSON. It must not become undefined, or a client could send a list to be counted by address alone.
 */
function clientText(value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined;
  if (Array.isArray(value) && value.length === 1) return clientText(value[0]);
  const text = ownText(value) ?? (typeof value === 'string' ? '' : JSON.stringify(value));
  const trimmed = text.toWellFormed().trim();
  if (trimmed.length > MAX_VALUE_LENGTH) return hash('sha256', trimmed, 'base64url');
  return trimmed.normalize('NFC').toLowerCase() || undefined;
}

/** Joins labelled parts to one key. Different parts never have the same key. A long key is hashed. */
export function joinKeyParts(parts: readonly (readonly [label: string, value: string])[]): string {
  const key = JSON.stringify(parts);
  return Buffer.byteLength(key) <= MAX_KEY_BYTES ? key : hash('sha256', key, 'base64url');
}
