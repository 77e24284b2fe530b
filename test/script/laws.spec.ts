import { type Redis, type RedisOptions } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { isNativeError } from 'node:util/types';
import { healthScript } from '../../lib/assembly/redis-connection.js';
import { allScripts } from '../../lib/assembly/script-loader.js';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { batchOf } from '../../lib/script/batch.js';
import { type ScriptArg, ScriptRunner } from '../../lib/script/script-runner.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { counterExamples } from './examples/counter.examples.js';
import { budgetExamples } from './examples/budget.examples.js';
import type { ScriptExample } from './examples/example.js';
import { fenceExamples } from './examples/fence.examples.js';
import { limitExamples } from './examples/limit.examples.js';
import { lockExamples } from './examples/lock.examples.js';
import { secretExamples } from './examples/secret.examples.js';

const examples: readonly ScriptExample[] = [
  { script: healthScript, keys: { health: 'syncguard/health' }, args: {} },
  ...lockExamples,
  ...fenceExamples,
  ...limitExamples,
  ...secretExamples,
  ...counterExamples,
  ...budgetExamples,
];

const keysOf = ({ script, keys }: ScriptExample): string[] => script.keys.map((name) => keys[name] as string);
const argsOf = ({ script, args }: ScriptExample): ScriptArg[] =>
  script.args.map((name) => args[name] as ScriptArg);

const byName = examples.map((example): [string, ScriptExample] => [example.script.name, example]);

/**
 * The part of a key from which a Cluster computes the slot. A key without a tag shares its slot with no other
 * key.
 */
const hashTagOf = (key: string | undefined): string | undefined => /\{([^}]+)\}/.exec(key ?? '')?.[1] ?? key;

/** Runs an example, and returns the reply of each of its calls. */
type Evaluate = (example: ScriptExample, on?: Redis) => Promise<unknown[]>;

/** The commands that scripts ran, as MONITOR shows them. */
async function commandsWithin(client: Redis, run: () => Promise<unknown>): Promise<string[][]> {
  // ioredis fails on a line of MONITOR that arrives together with its OK, so nothing else may be on its way to
  // the server.
  await client.ping();
  const monitor = await client.monitor();
  const commands: string[][] = [];
  monitor.on('monitor', (_time: string, args: string[], source: string) => {
    if (source === 'lua') commands.push(args);
  });
  await run();
  // MONITOR shows commands in the order in which they ran. After this command all those of the script are
  // there.
  const seen = new Promise<void>((resolve) =>
    monitor.on('monitor', (_time: string, args: string[]) => args[1] === 'the end of the laws' && resolve()),
  );
  await client.echo('the end of the laws');
  await seen;
  monitor.disconnect();
  return commands;
}

describe('the laws of scripts', () => {
  let client: Redis;
  beforeEach(async () => {
    client = (await freshRedis()).client();
  });

  const alone: Evaluate = async (example, on = client) => {
    const keys = keysOf(example);
    return [await on.eval(example.script.lua, keys.length, ...keys, ...argsOf(example))];
  };
  /** Two calls in one batch. Fails if one of them does. */
  const inBatch: Evaluate = async ({ script, ...example }, on = client) => {
    const call = { keysAndArgs: [...keysOf({ script, ...example }), ...argsOf({ script, ...example })] };
    const batch = batchOf(script);
    const [keys, ...rest] = batch.argsOf([call, call]) as [number, ...ScriptArg[]];
    const replies = (await on.eval(batch.lua, keys, ...rest)) as unknown[];
    expect(replies).toHaveLength(2);
    for (const reply of replies) if (isNativeError(reply)) throw reply;
    return replies;
  };

  it('every registered script has an example here', () => {
    const known = new Set(examples.map(({ script }) => script.name));
    expect(allScripts.map(({ name }) => name).filter((name) => !known.has(name))).toStrictEqual([]);
  });

  it('names and commands are unique', () => {
    expect(new Set(allScripts.map(({ name }) => name)).size).toBe(allScripts.length);
    for (const { name, command } of allScripts)
      expect(command).toMatch(new RegExp(`^syncguard:${name}:[0-9a-f]{8}$`));
  });

  describe.each(byName)('%s', (_, example) => {
    const { script } = example;
    const prepare = async (on: Redis = client, prefix = ''): Promise<void> =>
      void (await example.prepare?.(on, prefix));

    it('compiles', async () => {
      await expect(client.script('LOAD', script.lua)).resolves.toMatch(/^[0-9a-f]{40}$/);
    });

    describe.each([
      ['alone', alone],
      ['in a batch', inBatch],
    ])('%s', (_form, evaluate) => {
      it('1: touches declared keys only, all of them in one slot', async () => {
        await prepare();
        const declared = keysOf(example);
        for (const command of await commandsWithin(client, () => evaluate(example))) {
          if (/^(time|publish)$/i.test(command[0] ?? '')) continue;
          const touched = (await client.command(
            'GETKEYS',
            ...(command as [string, ...string[]]),
          )) as string[];
          for (const key of touched) if (!example.undeclared?.test(key)) expect(declared).toContain(key);
        }
        if (declared.length > 1)
          expect(new Set(declared.map(hashTagOf))).toStrictEqual(new Set([hashTagOf(declared[0])]));
      });

      it('2: fails before the first write when a key holds another type', async () => {
        for (const key of keysOf(example)) {
          await client.flushall();
          await prepare();
          await client.del(key);
          await client.xadd(key, '*', 'a', 'stream');
          const before = await snapshot();
          const failed = await evaluate(example).then(
            () => false,
            () => true,
          );
          if (failed) expect(await snapshot()).toStrictEqual(before);
        }
      });

      it('4: leaves no key without a TTL, but those that the design names', async () => {
        await prepare();
        await evaluate(example);
        for (const key of await client.keys('*'))
          expect([key, (await client.pttl(key)) > 0]).toStrictEqual([key, !example.immortal?.test(key)]);
      });

      it('5: replies an integer, a string, or a flat array of those', async () => {
        await prepare();
        for (const protocol of [2, 3] as const) {
          const on = workerRedis().client({ protocol });
          for (const reply of (await evaluate(example, on)).flat())
            expect(typeof reply === 'string' || Number.isSafeInteger(reply)).toBe(true);
        }
      });
    });

    it('3: keeps time in ms, by the server', () => {
      expect(script.lua).not.toMatch(/'(EXPIRE|EXPIREAT|SETEX|TTL|GETEX)'|'EX'|os\.(time|clock)/i);
    });

    it('7: is safe to run twice', async () => {
      await prepare();
      await alone(example);
      const once = await client.keys('*');
      const again = script.binary
        ? await client.callBuffer(
            'EVAL',
            script.lua,
            script.keys.length,
            ...keysOf(example),
            ...argsOf(example),
          )
        : (await alone(example))[0];
      script.decode(again);
      expect((await client.keys('*')).sort()).toStrictEqual(once.sort());
    });

    describe.each<[string, (options?: RedisOptions) => RedisClient]>([
      ['ioredis 6, RESP3', (options) => workerRedis().client({ protocol: 3, ...options })],
      ['ioredis 6, RESP2', (options) => workerRedis().client({ protocol: 2, ...options })],
      [
        'ioredis 5',
        (options) => workerRedis().track(new Redis5({ port: workerRedis().port, ...(options as object) })),
      ],
      ['auto-pipelining', (options) => workerRedis().client({ enableAutoPipelining: true, ...options })],
    ])('on %s', (_variant, connect) => {
      const run = (runner: ScriptRunner): Promise<unknown> => runner.run(script, example.keys, example.args);

      it('runs by name, and again after SCRIPT FLUSH', async () => {
        const runner = new ScriptRunner(connect(), 1_000);
        await prepare();
        await expect(run(runner)).resolves.not.toThrow();
        await client.script('FLUSH');
        await client.flushall();
        await prepare();
        await expect(run(runner)).resolves.not.toThrow();
      });

      it('runs in a batch, and again after SCRIPT FLUSH', async () => {
        const runner = new ScriptRunner(connect(), 1_000);
        await runner.ready();
        for (let i = 0; i < 2; i++) {
          await client.flushall();
          await prepare();
          await Promise.all([run(runner), run(runner), run(runner)]);
          await client.script('FLUSH');
        }
      });

      it("runs under the client's keyPrefix", async () => {
        const prefixed = workerRedis().client({ keyPrefix: 'app:' });
        await prepare(prefixed, 'app:');
        await run(new ScriptRunner(connect({ keyPrefix: 'app:' }), 1_000));
        for (const key of await client.keys('*')) expect(key.startsWith('app:')).toBe(true);
      });
    });
  });

  async function snapshot(): Promise<string[]> {
    const keys = (await client.keys('*')).sort();
    const dumps = await Promise.all(keys.map((key) => client.dumpBuffer(key)));
    return keys.map((key, i) => `${key} ${dumps[i]?.toString('hex')}`);
  }
});
