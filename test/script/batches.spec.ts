import { type Redis, type RedisOptions } from 'ioredis';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { RedisFault } from '../../lib/redis/redis.errors.js';
import { defineScript } from '../../lib/script/define-script.js';
import { type RunOptions, ScriptRunner } from '../../lib/script/script-runner.js';
import { RedisFenceBackend } from '../../lib/lock/redis/fence.redis-backend.js';
import { RedisSecretBackend } from '../../lib/secret/redis/secret.redis-backend.js';
import { resolveSecretDefaults } from '../../lib/secret/secret.options.js';
import { SecretService } from '../../lib/secret/secret.service.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';

const addScript = defineScript({
  name: 'test-add',
  keys: ['counter'],
  args: ['amount'],
  lua: `
if amount == 'throw' then error('SYNCGUARD_FOREIGN thrown', 0) end
if amount == 'refuse' then return redis.error_reply('OOM refused') end
return redis.call('INCRBY', counter, amount)`,
  decode: Number,
});
const echoScript = defineScript({
  name: 'test-echo',
  keys: ['key'],
  args: ['text', 'more'],
  lua: `return {KEYS[1], text, more}`,
  binary: true,
  decode: (reply) => (reply as Buffer[]).map(String),
});

const PATIENT_MS = 10_000;
const runnerOn = (client: unknown): ScriptRunner => new ScriptRunner(client as RedisClient, PATIENT_MS);

type Outcome = number | { code: string; mayHaveRun: boolean };

type Add = readonly [key: string, amount?: string, RunOptions<number>?];

/** Runs all of it in one turn. The first call goes at once, and the others together. */
const startAll = (runner: ScriptRunner, calls: readonly Add[]): Promise<Outcome>[] =>
  calls.map(([counter, amount = '1', options]) =>
    runner.run(addScript, { counter }, { amount }, options).catch((fault: RedisFault): Outcome => {
      expect(fault).toBeInstanceOf(RedisFault);
      return { code: fault.code, mayHaveRun: fault.mayHaveRun };
    }),
  );
const runAll = (runner: ScriptRunner, calls: readonly Add[]): Promise<Outcome[]> =>
  Promise.all(startAll(runner, calls));

describe('calls of one turn', () => {
  let admin: Redis;
  let runner: ScriptRunner;
  beforeEach(async () => {
    admin = (await freshRedis()).client();
    runner = runnerOn(await connected());
  });

  const connected = async (options: RedisOptions = {}): Promise<Redis> => {
    const client = workerRedis().client(options);
    await client.ping();
    return client;
  };
  async function scriptsRun(run: () => Promise<unknown>): Promise<number> {
    await admin.config('RESETSTAT');
    await run();
    const stats = await admin.info('commandstats');
    return [...stats.matchAll(/^cmdstat_eval(?:sha)?:calls=(\d+)/gm)].reduce(
      (sum, [, n]) => sum + Number(n),
      0,
    );
  }

  it('are one command for 32 of them, after the first, and each gets its own reply', async () => {
    const calls = Array.from({ length: 65 }, (_, i): [string, string] => [`c${i}`, String(i)]);
    const expected = calls.map((_, i) => i);
    const results: unknown[] = [];
    expect(await scriptsRun(async () => results.push(...(await runAll(runner, calls))))).toBe(3);
    expect(results).toStrictEqual(expected);
  });

  it('are sent one by one when they come one by one', async () => {
    const oneByOne = async (): Promise<void> => {
      for (let i = 0; i < 5; i++) await runAll(runner, [['a']]);
    };
    expect(await scriptsRun(oneByOne)).toBe(5);
  });

  it('keep their order when they are for one key', async () => {
    const calls = Array.from({ length: 40 }, (): [string] => ['same']);
    expect(await runAll(runner, calls)).toStrictEqual(calls.map((_, i) => i + 1));
  });

  it('of two scripts keep their order: a command for each run of one script', async () => {
    const both = (): Promise<unknown> =>
      Promise.all([
        runAll(runner, [['first'], ['a'], ['b']]),
        ...['x', 'y'].map(async (key) => {
          const reply = runner.run(echoScript, { key }, { text: Buffer.from('ä'), more: 7 });
          expect(await reply).toStrictEqual([key, 'ä', '7']);
        }),
      ]);
    expect(await scriptsRun(both)).toBe(3);
  });

  it('of a script whose reply holds a payload are a command each', async () => {
    const secrets = new SecretService(new RedisSecretBackend(runner, 'app'), resolveSecretDefaults());
    const fences = new RedisFenceBackend(runner, { keyPrefix: 'app', keyLayout: 'spec' });
    const created = await Promise.all(
      Array.from({ length: 20 }, (_, i) => secrets.create({ payload: `of ${i}`, views: 1 })),
    );
    const payloads: unknown[] = [];
    const viewAll = async (): Promise<void> => {
      const views = await Promise.all(created.map(({ id }) => secrets.view(id)));
      payloads.push(...views.map((view) => view.ok && view.payload));
    };
    expect(await scriptsRun(viewAll)).toBe(20);
    expect(payloads).toStrictEqual(created.map((_, i) => `of ${i}`));
    const getAll = (): Promise<unknown> => Promise.all(created.map((_, i) => fences.get(`large:${i}`, {})));
    expect(await scriptsRun(getAll)).toBe(20);
  });

  it('of more than 64 KB go in several commands', async () => {
    const text = Buffer.alloc(30_000, 'x');
    const calls = (): Promise<unknown> =>
      Promise.all(Array.from({ length: 5 }, () => runner.run(echoScript, { key: 'a' }, { text, more: '' })));
    expect(await scriptsRun(calls)).toBe(3);
  });

  it.each<[string, RedisOptions | undefined]>([
    ['RESP3', { protocol: 3 }],
    ['RESP2', { protocol: 2 }],
    ['auto-pipelining', { enableAutoPipelining: true }],
    ['a keyPrefix', { keyPrefix: 'app:' }],
    ['a client that has only eval', undefined],
  ])('harm no other with a key of another type or an error of the script, on %s', async (_, options) => {
    const client = await connected(options);
    const bare = {
      eval: (lua: string, ...args: never[]) => client.eval(lua, ...(args as unknown as [number])),
    };
    await client.rpush('list', 'x');
    expect(
      await runAll(runnerOn(options ? client : bare), [
        ['a'],
        ['b'],
        ['list'],
        ['c', 'throw'],
        ['d', 'refuse'],
        ['b', '5'],
      ]),
    ).toStrictEqual([
      1,
      1,
      { code: 'InvalidArgument', mayHaveRun: false },
      { code: 'InvalidArgument', mayHaveRun: false },
      { code: 'ServiceUnavailable', mayHaveRun: false },
      6,
    ]);
  });

  it('are not sent if they are aborted before the turn ends', async () => {
    const controller = new AbortController();
    const undo = jest.fn();
    const running = runAll(runner, [['a'], ['b', '1', { signal: controller.signal, undo }], ['c']]);
    controller.abort();
    expect(await running).toStrictEqual([1, { code: 'Aborted', mayHaveRun: false }, 1]);
    expect(await admin.exists('b')).toBe(0);
    expect(undo).not.toHaveBeenCalled();
  });

  it('an ACL that forbids one key refuses that call alone', async () => {
    await admin.acl('SETUSER', 'narrow', 'on', '>x', '~a*', '+@all');
    const narrow = await connected({ username: 'narrow', password: 'x' });
    expect(await runAll(runnerOn(narrow), [['a1'], ['a2'], ['b'], ['a3']])).toStrictEqual([
      1,
      1,
      { code: 'AuthFailed', mayHaveRun: false },
      1,
    ]);
    await admin.acl('DELUSER', 'narrow');
  });

  it('are sent before the connection is closed', async () => {
    const running = runAll(runner, [['a'], ['b'], ['c']]);
    runner.close();
    await runner.client.quit?.();
    expect(await running).toStrictEqual([1, 1, 1]);
  });

  it('wait for those before them, and count their deadline from when they are sent', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const behind = new ScriptRunner(await connected({ port: proxy.port }), 1_500);
    proxy.delay(300); // each way: all rounds together take longer than one call may
    const calls = Array.from({ length: 4 * 256 }, (_, i): Add => [`c${i}`, '7']);
    expect(await runAll(behind, calls)).toStrictEqual(calls.map(() => 7));
  });

  it('are not sent when those before them are not answered', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const behind = new ScriptRunner(await connected({ port: proxy.port }), 500);
    proxy.halfOpen();
    const outcomes = await runAll(
      behind,
      Array.from({ length: 300 }, (_, i): Add => [`c${i}`]),
    );
    const unanswered = (mayHaveRun: boolean): Outcome => ({ code: 'NetworkTimeout', mayHaveRun });
    const sent = outcomes.filter((outcome) => typeof outcome === 'object' && outcome.mayHaveRun);
    expect(sent).toStrictEqual(Array(256).fill(unanswered(true)));
    expect(outcomes.slice(256)).toStrictEqual(Array(44).fill(unanswered(false)));
    await proxy.restore();
    await eventually(async () => expect(await admin.exists('c0', 'c255')).toBe(2));
    expect(await admin.exists('c256', 'c299')).toBe(0);
  });

  it('that claim go at once, and renewals before all others', async () => {
    await runAll(runner, [['warm']]);
    const order: string[] = [];
    const start = (name: string, priority?: RunOptions<number>['priority']): Promise<unknown> =>
      runAll(runner, [[name, '1', { priority }]]).then(() => order.push(name));
    const running = [start('first'), start('second'), start('renewal', 'renewal'), start('claim', 'claim')];
    await Promise.all(running);
    expect(order).toStrictEqual(['first', 'claim', 'renewal', 'second']);
  });

  describe('when the server or the connection fails', () => {
    let server: RedisServer;
    let proxy: TcpProxy;
    beforeEach(async () => {
      server = await startRedisServer();
      proxy = await startTcpProxy(server.port);
    });
    afterEach(async () => {
      await proxy.stop();
      await server.stop();
    });
    const behindProxy = async (options: RedisOptions = {}): Promise<ScriptRunner> => {
      const client = server.client({ port: proxy.port, retryStrategy: () => 5, ...options });
      const behind = runnerOn(client);
      await runAll(behind, [['warm'], ['warm'], ['warm']]);
      return behind;
    };

    it('one that times out is undone alone, by its late reply', async () => {
      const behind = await behindProxy();
      const [undo, onLate, others] = [jest.fn(), jest.fn(), jest.fn()];
      server.pause();
      const running = startAll(behind, [
        ['a', '1', { undo: others }],
        ['b', '2', { undo, onLate, timeoutMs: 50 }],
        ['c', '3', { undo: others }],
      ]);
      await running[1];
      const left = behind.untilAnswered(PATIENT_MS);
      server.resume();
      expect(await Promise.all(running)).toStrictEqual([1, { code: 'NetworkTimeout', mayHaveRun: true }, 3]);
      await left;
      await eventually(() => expect(undo.mock.calls).toStrictEqual([[2]]));
      expect(onLate.mock.calls).toStrictEqual([[2]]);
      expect(others).not.toHaveBeenCalled();
    });

    it('one that is aborted after it was sent is undone alone', async () => {
      const behind = await behindProxy();
      const controller = new AbortController();
      const [undo, others] = [jest.fn(), jest.fn()];
      server.pause();
      const { chunks } = proxy.sent;
      const running = startAll(behind, [
        ['a', '1', { undo: others }],
        ['b', '2', { undo, signal: controller.signal }],
        ['c', '3', { undo: others }],
      ]);
      await eventually(() => expect(proxy.sent.chunks).toBeGreaterThan(chunks));
      controller.abort();
      await running[1];
      server.resume();
      expect(await Promise.all(running)).toStrictEqual([1, { code: 'Aborted', mayHaveRun: true }, 3]);
      await eventually(() => expect(undo.mock.calls).toStrictEqual([[2]]));
      expect(others).not.toHaveBeenCalled();
    });

    it('are each undone when their connection is lost', async () => {
      const behind = await behindProxy({ maxRetriesPerRequest: 0 });
      const undos = [jest.fn(), jest.fn(), jest.fn()];
      proxy.cutAfterRequest();
      const running = await runAll(
        behind,
        undos.map((undo, i) => [`k${i}`, '1', { undo }]),
      );
      expect(running).toStrictEqual(undos.map(() => ({ code: 'ServiceUnavailable', mayHaveRun: true })));
      for (const undo of undos) expect(undo.mock.calls).toStrictEqual([[]]);
      expect(await runAll(behind, [['x'], ['y'], ['z']])).toStrictEqual([1, 1, 1]);
    });

    it('are each told that the client has sent them again', async () => {
      const behind = await behindProxy({ maxRetriesPerRequest: null });
      const replays = [jest.fn(), jest.fn(), jest.fn()];
      proxy.cutAfterRequest();
      const running = await runAll(
        behind,
        replays.map((onReplay, i) => [`k${i}`, '1', { onReplay }]),
      );
      expect(running).toStrictEqual([2, 2, 2]);
      for (const onReplay of replays) expect(onReplay).toHaveBeenCalledTimes(1);
    });

    it('wait for the connection as single calls do', async () => {
      const behind = await behindProxy();
      await proxy.refuse();
      await eventually(() => expect(behind.readiness.ready).toBe(false));
      const running = startAll(behind, [['a'], ['b'], ['c'], ['d', '1', { timeoutMs: 50 }]]);
      await running[3];
      await proxy.restore();
      expect(await Promise.all(running)).toStrictEqual([
        1,
        1,
        1,
        { code: 'ServiceUnavailable', mayHaveRun: false },
      ]);
      expect(await server.client().exists('d')).toBe(0);
    });
  });

  describe('whose keys are in several slots', () => {
    let server: RedisServer;
    beforeAll(async () => {
      server = await startRedisServer({ cluster: true });
    });
    afterAll(() => server.stop());
    const calls = ['a', 'b', 'c', 'd'].map((key): [string] => [key]);

    it('run on a Cluster', async () => {
      await server.client().flushall();
      const cluster = server.cluster();
      expect(await runAll(runnerOn(cluster), calls)).toStrictEqual([1, 1, 1, 1]);
    });

    it('run one by one behind a proxy that has slots and shows none', async () => {
      await server.client().flushall();
      const plain = runnerOn(server.client());
      expect(await runAll(plain, calls)).toStrictEqual([1, 1, 1, 1]);
      expect(await runAll(plain, calls)).toStrictEqual([2, 2, 2, 2]);
    });
  });
});
