import { SyncGuardConfigError } from '../core/errors.js';
import { safely } from '../core/foreign-values.js';
import { describe, integer, knownOptions } from '../core/validate.js';
import { CLUSTER_OPTIONS, NODE_OPTIONS, SENTINEL_OPTIONS, SERVER_OPTIONS } from './ioredis.names.js';

type Options = Readonly<Record<string, unknown>>;

const WAYS =
  "Write `redis: 'redis://host:6379'`, `redis: { host, port }`, `redis: { sentinels: [{ host, port }], name }` or `redis: { nodes: [{ host, port }] }`.";
const UNSET = `Check that the variable that it comes from is set, or leave it out. ${WAYS}`;
const IOREDIS = 'The options of ioredis 5 and 6 are known. For one that is newer, pass a client of your own.';

/** Checks the options of ioredis for one server, or for a primary behind Sentinels. */
export function validateServer(redis: object): void {
  const options = ioredisOptions('redis', redis, SERVER_OPTIONS, (name) =>
    name === 'url' || name === 'uri' ? 'Pass the URL itself: `redis: url`.' : WAYS,
  );
  validateAddress('redis', options, ['host', 'port', 'path', 'sentinels']);
  if (Object.hasOwn(options, 'sentinels')) validateSentinels(options);
  // Of `Number(undefined)` ioredis makes database 0.
  if (options['db'] !== undefined) integer('redis.db', Number(options['db']));
}

/** Checks `{ nodes, options }`. */
export function validateCluster(redis: object): void {
  const { nodes, options } = knownOptions('redis', redis, ['nodes', 'options']);
  for (const [i, node] of listOf('redis.nodes', nodes).entries()) validateNode(`redis.nodes[${i}]`, node);
  const { redisOptions } = ioredisOptions('redis.options', options, CLUSTER_OPTIONS, (name) =>
    NODE_OPTIONS.includes(name) ? 'It is an option of the nodes: `options: { redisOptions }`.' : IOREDIS,
  );
  ioredisOptions('redis.options.redisOptions', redisOptions, NODE_OPTIONS);
}

function validateSentinels({ sentinels, name }: Options): void {
  for (const [i, sentinel] of listOf('redis.sentinels', sentinels).entries())
    validateHost(`redis.sentinels[${i}]`, sentinel, SENTINEL_OPTIONS);
  if (typeof name !== 'string' || name === '')
    throw wrong('redis.name', 'the name by which the Sentinels know the primary', name, UNSET);
}

function validateNode(at: string, node: unknown): void {
  if (typeof node === 'number') integer(at, node, 1, 65_535);
  else if (typeof node === 'string') validateUrl(at, node.includes('://') ? node : `redis://${node}`);
  else validateHost(at, node, [...NODE_OPTIONS, 'host', 'port']);
}

function validateHost(at: string, options: unknown, known: readonly string[]): void {
  validateAddress(at, ioredisOptions(at, options ?? null, known), ['host', 'port']);
}

/** An option of the address that is there without a value was built from a missing one. ioredis would take its default. */
function validateAddress(at: string, options: Options, names: readonly string[]): void {
  const given = names.filter((name) => Object.hasOwn(options, name));
  if (given.length === 0)
    throw new SyncGuardConfigError(`${at} names no server: it has none of ${names.join(', ')}.`, {
      hint: WAYS,
    });
  for (const name of given) if (name !== 'sentinels') validatePart(`${at}.${name}`, name, options[name]);
}

function validatePart(at: string, name: string, value: unknown): void {
  if (name === 'port' && value !== undefined && value !== '') integer(at, Number(value), 1, 65_535);
  else if (typeof value !== 'string' || value === '' || standsForMissing(value))
    throw wrong(at, name === 'port' ? 'a port' : 'a string', value, UNSET);
  else if (value.includes('://') || (name === 'host' && value.includes('@')))
    throw wrong(at, `a ${name}`, value, 'Pass the URL itself: `redis: url`.');
}

function ioredisOptions(
  at: string,
  options: unknown,
  known: readonly string[],
  remedy = (_name: string): string => IOREDIS,
): Options {
  if (options !== undefined && (typeof options !== 'object' || options === null))
    throw wrong(at, 'an object', options, WAYS);
  return knownOptions(at, options, known, remedy);
}

function listOf(at: string, value: unknown): unknown[] {
  if (Array.isArray(value) && value.length > 0) return value;
  throw wrong(at, 'a list of at least one address', value, WAYS);
}

/** Never shows the value, because it may be a URL with a password. */
const wrong = (at: string, bound: string, value: unknown, hint: string): SyncGuardConfigError =>
  new SyncGuardConfigError(`${at} must be ${bound}, got ${describe(value)}.`, { hint });

/** Returns whether a text was built from a missing value, as `redis://${process.env.REDIS_HOST}:6379` may be. */
const standsForMissing = (value: string): boolean => /^(undefined|null|NaN)$/.test(value);

/** Checks a URL. The errors never quote it, because it may contain a password. */
export function validateUrl(at: string, url: string): string {
  const malformed = (what: string): SyncGuardConfigError =>
    new SyncGuardConfigError(`${at} must be a URL like redis://user:password@host:6379/0, but ${what}.`, {
      hint: 'The value is not shown, because it may contain a password. "/", "@" and "%" in a password must be percent-encoded.',
    });
  if (url.startsWith('/')) return url;
  if (url === '') throw malformed('it is empty; leave the option out for the memory backend');
  if (!URL.canParse(url)) throw malformed(`it cannot be parsed (${describe(url)})`);
  const { protocol, username, password, hostname, pathname } = new URL(url);
  if (protocol !== 'redis:' && protocol !== 'rediss:') throw malformed(`its scheme is "${protocol}//"`);
  if (hostname === '') throw malformed('it names no host');
  for (const [part, value] of Object.entries({ user: username, password, host: hostname }))
    if (standsForMissing(value))
      throw malformed(`its ${part} is "${value}", which stands for a missing value`);
  if (safely(() => decodeURIComponent(username + password)) === undefined)
    throw malformed('its user or password has a "%" that is not encoded');
  if (!/^\/?\d*$/.test(pathname)) throw malformed('its path is not a database number');
  return url;
}
