import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { type Redis } from 'ioredis';
import { LockService, SyncGuardHealthIndicator, SyncGuardModule } from 'nestjs-syncguard';
import { neededCommands } from '../../lib/assembly/acl-probe.js';
import { RedisConnection } from '../../lib/assembly/redis-connection.js';
import type { RedisConnectionOptions } from '../../lib/redis/redis.client.js';
import { toRedisFault } from '../../lib/redis/redis.errors.js';
import { eventually } from '../support/eventually.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';

describe('an ACL that forbids commands of our scripts', () => {
  let server: RedisServer;
  let admin: Redis;
  let warnings: string[];
  let redis: string;
  const opened: RedisConnection[] = [];
  beforeAll(async () => {
    server = await startRedisServer();
    admin = server.client();
    redis = `redis://app:x@${server.host}:${server.port}`;
  });
  afterAll(() => server.stop());
  beforeEach(async () => {
    warnings = [];
    await admin.flushall();
    await allow('+@all');
  });
  afterEach(async () => {
    await Promise.all(opened.splice(0).map((connection) => connection.close()));
  });

  const allow = (...rules: string[]) =>
    admin.acl('SETUSER', 'app', 'reset', 'on', '>x', '~*', '&*', '+@all', ...rules);

  async function open(to: RedisConnectionOptions = redis): Promise<RedisConnection> {
    const connection = new RedisConnection({
      redis: to,
      keyPrefix: 'syncguard',
      commandTimeoutMs: 10_000,
      closeClient: false,
      warn: (message) => warnings.push(message),
    });
    opened.push(connection);
    expect((await connection.opened()).fault).toBeUndefined();
    return connection;
  }

  it('names each of them at boot, and them alone', async () => {
    const connection = await open();
    expect(warnings).toStrictEqual([]);
    for (const command of neededCommands()) {
      warnings = [];
      await allow(`-${command}`);
      await connection.askAcl();
      expect(warnings).toStrictEqual([expect.stringMatching(`^REDIS_ACL: ${command}: `)]);
    }
    expect(await admin.keys('*')).toStrictEqual([]);
  });

  it('several are one warning, and again only when they change', async () => {
    await allow('-zadd', '-hset');
    const connection = await open();
    await connection.askAcl();
    await connection.check();
    expect(warnings).toStrictEqual([expect.stringMatching(/^REDIS_ACL: HSET, ZADD: .*`\+hset \+zadd`/)]);
  });

  it('leaves no key behind where it forbids SET and DEL', async () => {
    await allow('-set', '-del', '-unlink');
    await open();
    expect(warnings).toStrictEqual([expect.stringMatching('^REDIS_ACL: SET: ')]);
    expect(await admin.keys('*')).toStrictEqual([]);
  });

  it.each(['eval', 'evalsha'])('names %s, which runs the scripts', async (command) => {
    await allow('-eval', '-evalsha', `-${command}`);
    const connection = await open();
    expect(warnings).toStrictEqual([expect.stringMatching(/^REDIS_ACL: EVAL(SHA)?: /)]);
    expect(await connection.check()).toMatchObject({ code: 'REDIS_ACL' });
  });

  it('is not what a full server, or a command that we can do without, is taken for', async () => {
    await admin.config('SET', 'maxmemory', '1');
    await allow('-publish', '-subscribe', '-config');
    try {
      const connection = new RedisConnection({
        ...{ redis, keyPrefix: 'syncguard', commandTimeoutMs: 10_000, closeClient: false },
        warn: (message) => warnings.push(message),
      });
      opened.push(connection);
      await connection.opened();
      expect(await connection.check()).toMatchObject({ code: 'ServiceUnavailable' });
      expect(warnings).toStrictEqual([]);
    } finally {
      await admin.config('SET', 'maxmemory', '0');
    }
  });

  describe.each<[string, () => RedisConnectionOptions]>([
    ['our own connection', () => redis],
    ["a user's own client", () => server.client({ username: 'app', password: 'x' })],
    [
      'a client that has only eval',
      () => {
        const client = server.client({ username: 'app', password: 'x' });
        return { eval: client.eval.bind(client) } as unknown as RedisConnectionOptions;
      },
    ],
  ])('on %s', (_name, client) => {
    it('is found by the first refusal while the app runs, and let go by the next health check', async () => {
      const spy = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
      const module = await Test.createTestingModule({
        imports: [SyncGuardModule.forRoot({ redis: client() })],
      }).compile();
      try {
        const [health, locks] = [module.get(SyncGuardHealthIndicator), module.get(LockService)];
        const lock = () => locks.lock(() => 1, { key: 'order:7', timeoutMs: 0 });
        expect(await health.isHealthy()).toMatchObject({ syncguard: { status: 'up' } });

        await allow('-get');
        await expect(lock()).rejects.toMatchObject({ code: 'AuthFailed' });
        await eventually(async () => {
          await expect(lock()).rejects.toThrow('The ACL of Redis forbids GET.');
          expect(await health.isHealthy()).toStrictEqual({
            syncguard: {
              status: 'down',
              backend: 'redis',
              code: 'REDIS_ACL',
              message: 'The ACL of Redis forbids GET.',
            },
          });
        });
        expect(spy.mock.calls.map(([line]) => String(line))).toContainEqual(
          expect.stringMatching('^REDIS_ACL: GET: '),
        );

        await allow();
        expect(await health.isHealthy()).toMatchObject({ syncguard: { status: 'up' } });
        expect(await lock()).toBe(1);
      } finally {
        spy.mockRestore();
        await module.close();
      }
    });
  });

  it('is asked again on each reconnect', async () => {
    const connection = await open();
    await allow('-zadd');
    await admin.client('KILL', 'USER', 'app');
    await eventually(() => expect(warnings).toStrictEqual([expect.stringMatching('^REDIS_ACL: ZADD: ')]));
    expect(await connection.check()).toMatchObject({ code: 'REDIS_ACL' });
  });

  it('is asked on each master of a Cluster', async () => {
    const node = await startRedisServer({ cluster: true });
    try {
      await node.client().acl('SETUSER', 'default', '-zadd');
      const cluster = node.cluster();
      await eventually(() => expect(cluster.status).toBe('ready'));
      await open(cluster);
      expect(warnings).toStrictEqual([expect.stringMatching('^REDIS_ACL: ZADD: ')]);
    } finally {
      await node.stop();
    }
  });

  it.each([
    ["ERR The user executing the script can't run this command or subcommand", /forbids a command that/],
    ["ERR ACL failure in script: User app has no permissions to run the 'zadd' command", /forbids ZADD/],
    ["NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", /forbids EVALSHA/],
    ["NOPERM User app has no permissions to run the 'eval' command", /forbids EVAL\./],
    ['NOPERM this user has no permissions to access one of the keys used as arguments', /forbids a key/],
    ["ERR The user executing the script can't access at least one of the keys mentioned", /forbids a key/],
    ['ERR ACL failure in script: No permissions to access a key', /forbids a key/],
    ['WRONGPASS invalid username-password pair or user is disabled.', /refused the credentials/],
  ])('%s', (message, expected) => {
    const fault = toRedisFault(new Error(message));
    expect(fault.code).toBe('AuthFailed');
    expect(fault.message).toMatch(expected);
  });
});
