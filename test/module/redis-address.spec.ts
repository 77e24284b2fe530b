import { dirname, join } from 'node:path';
import * as ts from 'typescript';
import {
  createFenceGuard,
  createRedisBackend,
  SyncGuardConfigError,
  SyncGuardModule,
} from 'nestjs-syncguard';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';
import type { RedisConnectionOptions } from '../../lib/redis/redis.client.js';
import {
  CLUSTER_OPTIONS,
  NODE_OPTIONS,
  SENTINEL_OPTIONS,
  SERVER_OPTIONS,
} from '../../lib/redis/ioredis.names.js';
import { eventually } from '../support/eventually.js';
import { connectionsWith, IOREDIS_VERSIONS } from '../support/ioredis-versions.js';
import { startRedisServer } from '../support/redis-server.js';
import { startTcpProxy } from '../support/tcp-proxy.js';

const refusalOf = (redis: unknown): Error => {
  try {
    SyncGuardModule.forRoot({ redis: redis as string });
  } catch (error) {
    return error as Error;
  }
  throw new Error('It was accepted.');
};

const unset: string | undefined = undefined;
const url = 'redis://:s3cret@host:6379';
const port = 6379;
const sentinels = [{ host: 'host', port: 26379 }];
const nodes = [{ host: 'host', port }];

describe('the option `redis`', () => {
  it.each<[string, unknown, RegExp]>([
    ['no option', {}, /^redis names no server/],
    ['a URL under a name', { url }, /^redis\.url is not an option.*Pass the URL itself: `redis: url`/],
    ['a URL that is not there', { url: unset }, /^redis\.url is not an option/],
    ['a mock without eval', { get: () => {}, set: () => {} }, /^redis\.get is not an option/],
    ['an instance of some class', new (class Service {})(), /^redis names no server/],
    ['a promise', Promise.resolve(url), /^redis names no server/],
    ['a URL object', new URL(url), /^redis names no server/],
    ['a misspelt host', { hots: 'host' }, /^redis\.hots is not an option\. Did you mean host\?/],
    ['a misspelt option', { host: 'host', pasword: 'x' }, /^redis\.pasword.*Did you mean password\?/],
    ['only what is no address', { password: 'x', db: 2, tls: {} }, /^redis names no server/],
    ['an unset host', { host: unset, port }, /^redis\.host must be a string, got undefined/],
    ['an empty host', { host: '', port }, /^redis\.host must be a string, got an empty string/],
    ['a host of null', { host: null, port }, /^redis\.host must be a string, got null/],
    ['a host from an unset variable', { host: `${unset}`, port }, /^redis\.host must be/],
    ['a URL as host', { host: url }, /^redis\.host must be a host.*Pass the URL itself/],
    ['an unset port', { host: 'host', port: unset }, /^redis\.port must be a port, got undefined/],
    ['an empty port', { host: 'host', port: '' }, /^redis\.port must be a port, got an empty string/],
    ['a port that is no number', { host: 'host', port: Number(unset) }, /^redis\.port must be .*NaN/],
    ['an empty path', { path: '' }, /^redis\.path must be a string/],
    ['an unset path', { path: unset }, /^redis\.path must be a string/],
    ['a database that is no number', { host: 'host', db: Number(unset) }, /^redis\.db must be .*NaN/],
    ['no Sentinels', { sentinels: [], name: 'main' }, /^redis\.sentinels must be a list of at least one/],
    ['unset Sentinels', { host: 'host', sentinels: unset }, /^redis\.sentinels must be a list/],
    ['Sentinels as text', { sentinels: url, name: 'main' }, /^redis\.sentinels must be a list/],
    ['a Sentinel as text', { sentinels: [url], name: 'main' }, /^redis\.sentinels\[0\] must be an object/],
    ['a Sentinel without an address', { sentinels: [{}], name: 'main' }, /^redis\.sentinels\[0\] names no/],
    ['a Sentinel of null', { sentinels: [null], name: 'main' }, /^redis\.sentinels\[0\] must be an object/],
    [
      'a Sentinel with an unset host',
      { sentinels: [...sentinels, { host: unset, port }], name: 'main' },
      /^redis\.sentinels\[1\]\.host must be a string, got undefined/,
    ],
    ['Sentinels without a name', { sentinels }, /^redis\.name must be the name by which the Sentinels/],
    ['Sentinels with an unset name', { sentinels, name: unset }, /^redis\.name must be/],
    ['no nodes', { nodes: [] }, /^redis\.nodes must be a list of at least one/],
    ['unset nodes', { nodes: unset }, /^redis\.nodes must be a list of at least one.*undefined/],
    ['nodes as text', { nodes: url }, /^redis\.nodes must be a list of at least one/],
    ['a node without an address', { nodes: [{}] }, /^redis\.nodes\[0\] names no server/],
    ['a node with an unset host', { nodes: [{ host: unset, port }] }, /^redis\.nodes\[0\]\.host must be/],
    ['a node that is not there', { nodes: [unset] }, /^redis\.nodes\[0\] must be an object, got null/],
    ['an empty node', { nodes: [''] }, /^redis\.nodes\[0\] must be a URL.*no host/],
    ['a node from an unset variable', { nodes: [`${unset}`] }, /^redis\.nodes\[0\].*missing value/],
    ['a node of another scheme', { nodes: ['http://:s3cret@host'] }, /^redis\.nodes\[0\] must be a URL/],
    ['a node that is no port', { nodes: [99_999] }, /^redis\.nodes\[0\] must be an integer/],
    ['a misspelt option of a node', { nodes: [{ hots: 'host' }] }, /^redis\.nodes\[0\]\.hots.*mean host\?/],
    ['an option beside the nodes', { nodes, password: 's3cret' }, /^redis\.password is not an option/],
    [
      'an unknown option of a Cluster',
      { nodes, options: { natMaps: {} } },
      /^redis\.options\.natMaps.*natMap\?/,
    ],
    [
      'an option of the nodes at the Cluster',
      { nodes, options: { password: 's3cret' } },
      /^redis\.options\.password is not an option.*`options: \{ redisOptions \}`/,
    ],
    [
      'an unknown option of the nodes',
      { nodes, options: { redisOptions: { pasword: 's3cret' } } },
      /^redis\.options\.redisOptions\.pasword.*Did you mean password\?/,
    ],
    ['Sentinels of a node', { nodes, options: { redisOptions: { sentinels } } }, /redisOptions\.sentinels/],
    ['options of a Cluster as text', { nodes, options: url }, /^redis\.options must be an object/],
    ['a URL with an unset host', `redis://${unset}:6379`, /^redis must be a URL.*its host is "undefined"/],
    ['a URL with an unset password', `redis://:${unset}@host`, /^redis must be a URL.*its password is/],
    ['a URL with an unset port', `redis://host:${unset}`, /^redis must be a URL.*cannot be parsed/],
    ['a URL with a bare %', 'redis://:s3cret%@host', /^redis must be a URL.*not encoded/],
    ['an empty text', '', /^redis must be a URL.*it is empty/],
    ['a URL without a scheme', 'localhost:6379', /^redis must be a URL like/],
    ['a URL of another scheme', 'http://host', /^redis must be a URL like/],
    ['a URL of nothing', 'redis://', /^redis must be a URL like/],
    ['a URL with a port of letters', 'redis://:s3cret@host:abc', /^redis must be a URL like/],
    ['a URL with a database of letters', 'redis://:s3cret@host/db1', /^redis must be a URL like/],
    ['a URL without the @ of its password', 'redis://u:s3cret', /^redis must be a URL like/],
    ['null', null, /^redis must be a URL/],
  ])('that names no server, or something that ioredis does not know, is refused: %s', (_, redis, message) => {
    const error = refusalOf(redis);
    expect(error).toBeInstanceOf(SyncGuardConfigError);
    expect(error).toMatchObject({ code: 'InvalidArgument' });
    expect(error.message).toMatch(message);
    expect(error.message).not.toContain('s3cret');
  });

  it.each<[string, unknown]>([
    ['nothing at all, for the memory', unset],
    ['a URL', url],
    ['a socket', '/run/redis.sock'],
    ['a host', { host: 'host' }],
    ['a port', { port }],
    ['a port as text', { host: 'host', port: '6379' }],
    ['a path', { path: '/run/redis.sock' }],
    ['Sentinels', { sentinels, name: 'main', sentinelPassword: 'x' }],
    ['a Sentinel by its port', { sentinels: [{ port }], name: 'main' }],
    ['nodes of each form', { nodes: [url, 'host:7000', '7000', 7000, { host: 'host', port }, { port }] }],
    ['an option without a value that is no address', { host: 'host', password: unset, tls: unset }],
    ['a Cluster without options', { nodes, options: unset }],
    ['a mock that has eval', { eval: () => Promise.resolve(1) }],
  ])('that names a server is taken: %s', (_, redis) => {
    expect(() => SyncGuardModule.forRoot({ redis: redis as string })).not.toThrow();
  });
});

it.each<[string, unknown]>([
  ['a URL', url],
  ['options', { host: 'host' }],
  ['a mock without eval', { get: () => {} }],
  ['null', null],
])('a function that wants a client says so, and does not show what it got: %s', (_, client) => {
  for (const create of [createRedisBackend, createFenceGuard])
    expect(() => create(client as never)).toThrow(
      expect.objectContaining({
        code: 'InvalidArgument',
        message: expect.stringMatching(/^client must be an ioredis Redis or Cluster(?!.*s3cret)/) as string,
      }) as Error,
    );
});

describe('the options of ioredis', () => {
  it('are known by the names of its types, all of both versions and no others', () => {
    const optionsOf = typesOfIoredis();
    expect([...SERVER_OPTIONS].sort()).toStrictEqual(optionsOf('RedisOptions'));
    expect([...CLUSTER_OPTIONS].sort()).toStrictEqual(optionsOf('ClusterOptions'));
    expect([...NODE_OPTIONS].sort()).toStrictEqual(optionsOf('ClusterOptions', 'redisOptions'));
    expect([...SENTINEL_OPTIONS].sort()).toStrictEqual(optionsOf('SentinelAddress'));
  });
});

/** Reads the names of the properties of an exported type of ioredis, or of a property of it. */
function typesOfIoredis(): (type: string, property?: string) => string[] {
  const entries = IOREDIS_VERSIONS.map(([, name]) =>
    join(dirname(require.resolve(`${name}/package.json`)), 'built/index.d.ts'),
  );
  const program = ts.createProgram(entries, { skipLibCheck: true, strict: true, types: ['node'] });
  const checker = program.getTypeChecker();
  const namesOf = (entry: string, type: string, property?: string): string[] => {
    const source = program.getSourceFile(entry) as ts.SourceFile;
    const exports = checker.getExportsOfModule(checker.getSymbolAtLocation(source) as ts.Symbol);
    const symbol = exports.find(({ name }) => name === type) as ts.Symbol;
    const alias = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    let declared = checker.getDeclaredTypeOfSymbol(alias);
    if (property) {
      const of = checker.getPropertyOfType(declared, property) as ts.Symbol;
      declared = checker.getNonNullableType(checker.getTypeOfSymbol(of));
    }
    return checker.getPropertiesOfType(declared).map(({ name }) => name);
  };
  return (type, property) => [...new Set(entries.flatMap((entry) => namesOf(entry, type, property)))].sort();
}

describe.each(IOREDIS_VERSIONS)('the URL of a node, %s', (_, version) => {
  let connection: RedisConnection;
  afterEach(() => connection.close());
  const open = (redis: RedisConnectionOptions): void => {
    const { RedisConnection } = connectionsWith(version);
    connection = new RedisConnection({
      ...{ redis, keyPrefix: 'syncguard', commandTimeoutMs: 1_000, closeClient: false },
    });
  };

  it('says the password for all nodes, which it need not be one of', async () => {
    await using node = await startRedisServer({ cluster: true, password: 's3 cret' });
    await using service = await startTcpProxy(node.port);
    open({ nodes: [`redis://:s3%20cret@${service.host}:${service.port}`] });
    await eventually(async () => expect(await connection.check()).toBeUndefined());
  });

  it('says TLS for all nodes, unless the options do', async () => {
    open({ nodes: ['rediss://127.0.0.1:1'] });
    expect(connection.runner.client.options?.redisOptions?.tls).toStrictEqual({});
    await connection.close();
    const tls = { servername: 'redis' };
    open({ nodes: ['rediss://127.0.0.1:1'], options: { redisOptions: { tls } } });
    expect(connection.runner.client.options?.redisOptions?.tls).toStrictEqual(tls);
  });
});
