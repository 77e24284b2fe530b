import { isIP, isIPv4, isIPv6 } from 'node:net';

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

/** Returns the text that a value of a client is: a text, number or boolean, or a list of one of these. */
export function textIn(value: unknown): string | undefined {
  const only: unknown = Array.isArray(value) && value.length === 1 ? value[0] : value;
  if (typeof only === 'string') return only;
  return typeof only === 'number' || typeof only === 'bigint' || typeof only === 'boolean'
    ? String(only)
    : undefined;
}
