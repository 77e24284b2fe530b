import { hash } from 'node:crypto';
import { isIP, isIPv4, isIPv6 } from 'node:net';
import { isPlainKey } from '../core/validate.js';

/**
 * Returns an address in the form that the guard counts by: lower-case, without port and zone. IPv4 inside IPv6
 * (mapped, compatible, or behind NAT64) becomes IPv4. IPv6 becomes its subnet, because one client can use all addresses of its subnet.
 *
 * @param ipv6Subnet - the length of the subnet of one client, in bits, 32 to 128. Default: 64, as in `limit.ipv6Subnet`
 * @example normalizeAddress('[2001:DB8::1]:443') // '2001:db8:0:0::/64'
 */
export function normalizeAddress(address: string, ipv6Subnet = 64): string {
  const bare = withoutPort(address.trim()).replace(/%.*$/, '').toLowerCase();
  if (isIPv4(bare) || !isIPv6(bare)) return bare;
  const groups = groupsOf(bare);
  if (holdsIPv4(groups)) return asIPv4(groups);
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

/** Returns whether the last two groups are an address of IPv4: `::ffff:a.b.c.d`, `64:ff9b::a.b.c.d`, or `::a.b.c.d`, but not `::1`. */
function holdsIPv4(groups: readonly number[]): boolean {
  const [first, second, third, fourth, fifth, sixth] = groups;
  if (third !== 0 || fourth !== 0 || fifth !== 0) return false;
  if (first === 0x64 && second === 0xff9b) return sixth === 0;
  return first === 0 && second === 0 && (sixth === 0xffff || (sixth === 0 && groups[6] !== 0));
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

/** A path of `keyBy`, taken apart. */
export interface KeyPath {
  /** As `keyBy` names it: `body.email`. */
  readonly name: string;
  readonly source: string;
  readonly fields: readonly string[];
  /** Values of `user` and `session` are ids of the app. All others are of the client. */
  readonly isOurs: boolean;
  readonly isHeader: boolean;
}

export function keyPath(name: string): KeyPath {
  const [source = '', ...fields] = name.split('.');
  const isHeader = source === 'headers';
  return {
    name,
    source,
    // Node.js lower-cases the names of headers.
    fields: isHeader ? fields.map((field) => field.toLowerCase()) : fields,
    isOurs: source === 'user' || source === 'session',
    isHeader,
  };
}

/** Returns the value at a path in a request, or undefined if there is none. */
export function valueAt(request: object, { source, fields, isOurs }: KeyPath): unknown {
  let value: unknown = (request as Record<string, unknown>)[source];
  for (const field of fields) {
    if (typeof value !== 'object' || value === null) return undefined;
    // A client may send `{"__proto__": ...}`, so only own properties count. In objects of the app, inherited getters count too.
    value = isOurs || Object.hasOwn(value, field) ? (value as Record<string, unknown>)[field] : undefined;
  }
  return value;
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

/** Returns the text that a value of a client is: a text, number or boolean, or a list of one of these. */
export function textIn(value: unknown): string | undefined {
  const only: unknown = Array.isArray(value) && value.length === 1 ? value[0] : value;
  if (typeof only === 'string') return only;
  return typeof only === 'number' || typeof only === 'bigint' || typeof only === 'boolean'
    ? String(only)
    : undefined;
}

type Labelled = readonly [label: string, value: string];

/** Joins labelled parts to one key, which is printable ASCII. Different parts never have the same key. */
export function joinKeyParts(parts: readonly Labelled[]): string {
  const key = JSON.stringify(parts);
  if (isPlainKey(key)) return key;
  const plain = JSON.stringify(
    parts.map(([label, value]) => [label, isPlainKey(value) ? value : hash('sha256', value, 'base64url')]),
  );
  return isPlainKey(plain) ? plain : hash('sha256', key, 'base64url');
}
