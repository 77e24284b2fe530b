import { type Redis, type RedisOptions } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { healthScript } from '../../lib/assembly/redis-connection.js';
import { allScripts } from '../../lib/assembly/all-scripts.js';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import {
  alone,
  argsOf,
  asRepeatable,
  commandsWithin,
  type Evaluate,
  forms,
  keysOf,
  type State,
  stateOf,
} from './evaluate.js';
import { examples } from './examples/all.examples.js';
import type { ScriptExample } from './examples/example.js';
import { mutants } from './mutants.js';

const byName = examples.map((example): [string, ScriptExample] => [example.script.name, example]);

/**
 * The part of a key from which a Cluster computes the slot. A key without a tag shares its slot with no other
 * key.
 */
const hashTagOf = (key: string | undefined): string | undefined => /\{([^}]+)\}/.exec(key ?? '')?.[1] ?? key;

describe('the laws of scripts', () => {
  let client: Redis;
  beforeEach(async () => {
    client = (await freshRedis()).client();
  });

  const prepare = async (example: ScriptExample, on: Redis = client, prefix = ''): Promise<void> =>
    void (await example.prepare?.(on, prefix));

  const state = (): Promise<State> => stateOf(client);

  /** The laws that a call shows. Each function throws where an example breaks its law. */
  const laws: Record<string, (example: ScriptExample, evaluate: Evaluate) => Promise<void>> = {
    '1: touches declared keys only, all of them in one slot': async (example, evaluate) => {
      await prepare(example);
      const declared = keysOf(example);
      for (const command of await commandsWithin(client, () => evaluate(example, client))) {
        if (/^(time|publish)$/i.test(command[0] ?? '')) continue;
        const touched = (await client.command('GETKEYS', ...(command as [string, ...string[]]))) as string[];
        for (const key of touched) if (!example.undeclared?.test(key)) expect(declared).toContain(key);
      }
      if (declared.length > 1)
        expect(new Set(declared.map(hashTagOf))).toStrictEqual(new Set([hashTagOf(declared[0])]));
    },

    '2: fails before the first write when a key holds another type': async (example, evaluate) => {
      workerRedis().clock.hold(Date.now());
      for (const key of keysOf(example)) {
        await client.flushall();
        await prepare(example);
        await client.del(key);
        await client.xadd(key, '*', 'a', 'stream');
        const before = await state();
        const fault = await evaluate(example, client).then(
          () => undefined,
          (error: Error) => error.message,
        );
        if (fault !== undefined) {
          expect(fault).toMatch(/^(SYNCGUARD_FOREIGN|WRONGTYPE) /);
          expect(await state()).toStrictEqual(before);
        } else if (!example.replaces?.test(key)) {
          expect(await state()).toContainEqual(before.find(([each]) => each === key));
        }
      }
    },

    '4: leaves no key without a TTL, but those that the design names': async (example, evaluate) => {
      await prepare(example);
      await evaluate(example, client);
      for (const key of await client.keys('*'))
        expect([key, (await client.pttl(key)) > 0]).toStrictEqual([key, !example.immortal?.test(key)]);
    },

    '5: replies an integer, a string, or a flat array of those': async (example, evaluate) => {
      await prepare(example);
      for (const protocol of [2, 3] as const) {
        const on = workerRedis().client({ protocol });
        for (const reply of (await evaluate(example, on)).flat())
          expect(typeof reply === 'string' || Number.isSafeInteger(reply)).toBe(true);
      }
    },

    '7: is safe to run twice': async (example, evaluate) => {
      workerRedis().clock.hold(Date.now());
      await prepare(example);
      const [first] = await alone(example, client);
      const once = await state();
      for (const reply of await evaluate(example, client)) {
        if (example.again) expect([reply].flat().slice(0, example.again.length)).toEqual(example.again);
        else expect(asRepeatable(example, [reply], [])).toStrictEqual(asRepeatable(example, [first], []));
      }
      expect(asRepeatable(example, [], await state())).toStrictEqual(asRepeatable(example, [], once));
    },
  };

  const isByContent = async ({ name, command, lua }: ScriptExample['script']): Promise<void> => {
    const sha = (await client.script('LOAD', lua)) as string;
    expect(command).toBe(`syncguard:${name}:${sha.slice(0, 8)}`);
  };
  const keepsMs = ({ lua }: ScriptExample['script']): void =>
    expect(lua).not.toMatch(/'(EXPIRE|EXPIREAT|SETEX|TTL|GETEX)'|'EX'|os\.(time|clock)/i);

  it('every registered script has an example here', () => {
    const known = new Set(examples.map(({ script }) => script.name));
    expect(allScripts.map(({ name }) => name).filter((name) => !known.has(name))).toStrictEqual([]);
  });

  it('names are unique', () => {
    expect(new Set(allScripts.map(({ name }) => name)).size).toBe(allScripts.length);
  });

  describe('are red with a script that breaks them', () => {
    describe.each(forms)('%s', (_form, evaluate) => {
      it.each(mutants.filter(({ law }) => law < 8))('$law: $fault', async ({ law, example }) => {
        const [, check] = Object.entries(laws).find(([title]) => title.startsWith(`${law}:`)) ?? [];
        await expect(check?.(example, evaluate)).rejects.toThrow(/^expect\(/);
      });
    });

    it('3: a TTL in seconds', () => {
      expect(() => keepsMs({ ...healthScript, lua: "redis.call('EXPIRE', KEYS[1], 1)" })).toThrow(
        /^expect\(/,
      );
    });

    it('6: a text that is not the one in the name', async () => {
      await expect(isByContent({ ...healthScript, lua: `${healthScript.lua} ` })).rejects.toThrow(
        /^expect\(/,
      );
    });
  });

  describe.each(byName)('%s', (_, example) => {
    const { script } = example;

    describe.each(forms)('%s', (_form, evaluate) => {
      it.each(Object.entries(laws))('%s', (_law, check) => check(example, evaluate));
    });

    it('3: keeps time in ms, by the server', () => keepsMs(script));

    it.each([undefined, {}, true])('5: does not decode a reply of another shape: %j', (odd) => {
      expect(() => script.decode(odd)).toThrow(/does not document a reply of this shape/);
    });

    it('6: compiles, and is named by its content', () => isByContent(script));

    it('decodes the reply of a second run', async () => {
      await prepare(example);
      await alone(example, client);
      const call = ['EVAL', script.lua, script.keys.length, ...keysOf(example), ...argsOf(example)] as const;
      const again = await (script.binary ? client.callBuffer(...call) : client.call(...call));
      expect(() => script.decode(again)).not.toThrow();
    });

    describe.each<[string, (options?: RedisOptions) => RedisClient]>([
      ['ioredis 6, RESP3', (options) => workerRedis().client({ protocol: 3, ...options })],
      ['ioredis 6, RESP2', (options) => workerRedis().client({ protocol: 2, ...options })],
      [
        'ioredis 5',
        (options) =>
          workerRedis().track(
            new Redis5({ port: workerRedis().port, disconnectTimeout: 100, ...(options as object) }),
          ),
      ],
      ['auto-pipelining', (options) => workerRedis().client({ enableAutoPipelining: true, ...options })],
    ])('on %s', (_variant, connect) => {
      const run = (runner: ScriptRunner): Promise<unknown> => runner.run(script, example.keys, example.args);

      it('runs by name, and again after SCRIPT FLUSH', async () => {
        const runner = new ScriptRunner(connect(), 10_000);
        await prepare(example);
        await expect(run(runner)).resolves.not.toThrow();
        await client.script('FLUSH');
        await client.flushall();
        await prepare(example);
        await expect(run(runner)).resolves.not.toThrow();
      });

      it('runs in a batch, and again after SCRIPT FLUSH', async () => {
        const runner = new ScriptRunner(connect(), 10_000);
        await runner.ready();
        for (let i = 0; i < 2; i++) {
          await client.flushall();
          await prepare(example);
          await Promise.all([run(runner), run(runner), run(runner)]);
          await client.script('FLUSH');
        }
      });

      it("runs under the client's keyPrefix", async () => {
        const prefixed = workerRedis().client({ keyPrefix: 'app:' });
        await prepare(example, prefixed, 'app:');
        await run(new ScriptRunner(connect({ keyPrefix: 'app:' }), 10_000));
        for (const key of await client.keys('*')) expect(key.startsWith('app:')).toBe(true);
      });
    });
  });
});
