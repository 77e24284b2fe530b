import { hash } from 'node:crypto';
import { isIP, isIPv4, isIPv6 } from 'node:net';
import { MAX_KEY_BYTES } from '../keys.js';

/** Longer values are hashed as they are: nobody has such an e-mail address. */
const MAX_VALUE_LENGTH = 1_024;

/** What the identity of a request is made of; by shape, so that Express and Fastify both fit. */
export interface IdentifiedRequest {
  readonly ip?: string | undefined;
  readonly socket?: { readonly remoteAddress?: string | undefined } | undefined;
}

/** The address of a request as one client: what many addresses of one subscriber have in common. */
export function clientAddress({ ip, socket }: IdentifiedRequest, ipv6Subnet: number): string {
  return normalizeAddress(ip ?? socket?.remoteAddress ?? '', ipv6Subnet);
}

/**
 * An address without port, zone and case; IPv4 in IPv6 as IPv4; IPv6 as its subnet, as whoever has one address
 * of it has them all.
 *
 * @param ipv6Subnet - how many bits an IPv6 client has for itself: 32 to 128. Default: 64, as `limit.ipv6Subnet`
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

/** What a header or a function says is the client's address, if that is one address and nothing else. */
export function singleAddress(text: unknown, ipv6Subnet: number): string | undefined {
  if (typeof text !== 'string' || isIP(withoutPort(text.trim())) === 0) return undefined;
  return normalizeAddress(text, ipv6Subnet);
}

function withoutPort(address: string): string {
  const bracketed = /^\[([^\]]*)\](?::\d+)?$/.exec(address);
  if (bracketed) return bracketed[1] ?? '';
  return /^[\d.]+:\d+$/.test(address) ? address.slice(0, address.indexOf(':')) : address;
}

/** The eight groups of a valid IPv6 address. */
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

/** The groups that the subnet reaches into, with what lies outside of it cleared. */
function maskTo(groups: readonly number[], bits: number): number[] {
  return groups.slice(0, Math.ceil(bits / 16)).map((group, i) => {
    const kept = Math.min(16, bits - 16 * i);
    return group & (0xffff << (16 - kept)) & 0xffff;
  });
}

/** What stands at a path in a request, fit to be compared: undefined where there is nothing. */
export function valueAt(request: object, path: string): string | undefined {
  const [part = '', ...fields] = path.split('.');
  const isOurs = part === 'user' || part === 'session';
  let value: unknown = (request as Record<string, unknown>)[part];
  for (const field of fields) {
    if (typeof value !== 'object' || value === null) return undefined;
    // Node lower-cases the names of headers.
    const name = part === 'headers' ? field.toLowerCase() : field;
    // Of what a client sends only own properties: `{"__proto__": ...}` finds nothing. A user may have getters.
    value = isOurs || Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined;
  }
  return isOurs ? idText(value) : clientText(value);
}

/** Where a user has its id, by the conventions of Passport's strategies, JWTs and the usual databases. */
const USER_IDS = ['id', 'sub', 'userId', '_id', 'uid'] as const;

/** The id of what authentication has put on the request: of an object the first of USER_IDS, else the value itself. */
export function userIdOf(user: unknown): string | undefined {
  if (typeof user !== 'object' || user === null) return ownText(user);
  for (const name of USER_IDS) {
    const id = idText((user as Record<string, unknown>)[name]);
    if (id !== undefined) return id;
  }
  return undefined;
}

/** An id that the app itself has made, also where it is an object that has a text of its own: a Mongo ObjectId. */
export function idText(value: unknown): string | undefined {
  if (typeof value !== 'object' || value === null) return ownText(value);
  if (value instanceof Uint8Array) return ownText(Buffer.from(value).toString('hex'));
  const { toHexString, toString } = value as { toHexString?: unknown; toString?: unknown };
  const method = typeof toHexString === 'function' ? toHexString : toString;
  // What every object, list and date inherits says nothing of whose id it is.
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

/** A text or number that the app itself has made: taken as it is. */
export function ownText(value: unknown): string | undefined {
  if (typeof value === 'number' || typeof value === 'bigint') return String(value);
  return typeof value === 'string' && value !== '' ? value.toWellFormed() : undefined;
}

/**
 * What a client typed: spellings of one e-mail address or name are one identity. A value of another shape is one
 * too: it must not count as no value, or whoever sends a list in place of a text would count by address alone.
 */
function clientText(value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined;
  if (Array.isArray(value) && value.length === 1) return clientText(value[0]);
  const text = ownText(value) ?? (typeof value === 'string' ? '' : JSON.stringify(value));
  const trimmed = text.toWellFormed().trim();
  if (trimmed.length > MAX_VALUE_LENGTH) return hash('sha256', trimmed, 'base64url');
  return trimmed.normalize('NFC').toLowerCase() || undefined;
}

/** One key out of labelled parts, unambiguous whatever they hold, and short enough for a key. */
export function joinIdentity(parts: readonly (readonly [label: string, value: string])[]): string {
  const key = JSON.stringify(parts);
  return Buffer.byteLength(key) <= MAX_KEY_BYTES ? key : hash('sha256', key, 'base64url');
}
