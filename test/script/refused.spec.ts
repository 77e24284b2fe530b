import type { Redis } from 'ioredis';
import { commandsOf } from '../../lib/script/define-script.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { alone, asRepeatable, commandsWithin, type Evaluate, forms, stateOf } from './evaluate.js';
import { examples } from './examples/all.examples.js';
import type { ScriptExample } from './examples/example.js';
import { mutants } from './mutants.js';

const byName = examples.map((example, i): [string, ScriptExample] => [
  `${example.script.name} (${i})`,
  example,
]);

/** A fence is passed over where a grant was refused. */
const withoutFences = (value: unknown): unknown =>
  JSON.parse(JSON.stringify(value).replace(/(:fence:[^"]*",-1,"|fence\\*":\\*")\d+/g, '$1'));

type Fault = Error & { readonly isRepeat?: boolean };

const faultOf = (running: Promise<unknown>): Promise<Fault | undefined> =>
  running.then(
    () => undefined,
    (fault: Fault) => fault,
  );

/** The scripts of a feature, which share their fragments. */
const familyOf = ({ name }: ScriptExample['script']): string => name.replace(/-.*/, '');

/**
 * Law 8, whole or harmless: what the server refuses in the middle of a script (a command that the ACL forbids, memory that
 * is full) leaves nothing that has no end, and a repeat of the call makes the rest whole: it is answered, and leaves
 * the server, as if the first one had never been.
 */
describe('8: a script that the server refuses is whole or harmless', () => {
  let server: RedisServer;
  let admin: Redis;
  let client: Redis;
  beforeAll(async () => {
    server = await startRedisServer();
    admin = server.client();
    await admin.acl('SETUSER', 'app', 'on', 'nopass', '~*', '&*', '+@all');
    client = server.client({ username: 'app', password: 'x' });
    await client.ping();
    const nowMs = Date.now();
    server.clock.hold(nowMs);
    jest.spyOn(Date, 'now').mockReturnValue(nowMs);
  });
  afterAll(async () => {
    jest.restoreAllMocks();
    await server.stop();
  });

  const prepare = async ({ prepare }: ScriptExample): Promise<void> => {
    await admin.flushall();
    await prepare?.(admin, '');
  };

  /** What the call is answered, and what it leaves. */
  async function outcome(example: ScriptExample, evaluate: Evaluate): Promise<unknown> {
    const replies = await evaluate(example, client);
    return withoutFences(asRepeatable(example, replies, await stateOf(admin)));
  }

  /** Runs the example while `refuse` holds, and once more after it. Returns what it was refused with. */
  async function expectHarmless(
    example: ScriptExample,
    evaluate: Evaluate,
    refuse: { begin(): Promise<unknown>; end(): Promise<unknown> },
  ): Promise<string | undefined> {
    await prepare(example);
    const undisturbed = await outcome(example, evaluate);
    await prepare(example);
    const stayed = await example.stays?.(admin);
    const endless = (await stateOf(admin)).filter(([, ttlMs]) => ttlMs < 0).map(([key]) => key);
    await refuse.begin();
    const fault = await faultOf(evaluate(example, client)).finally(() => refuse.end());
    for (const [key, ttlMs] of await stateOf(admin))
      if (!endless.includes(key))
        expect([key, ttlMs > 0 || example.immortal?.test(key)]).toStrictEqual([key, true]);
    // The first call of a batch was answered. Only what it did not need was refused to the second one.
    if (!fault || fault.isRepeat) return fault?.message;
    expect(await example.stays?.(admin)).toStrictEqual(stayed);
    expect(await outcome(example, evaluate)).toStrictEqual(undisturbed);
    return fault.message;
  }

  const forbidden = (command: string) => ({
    begin: () => admin.acl('SETUSER', 'app', `-${command}`),
    end: () => admin.acl('SETUSER', 'app', `+${command}`),
  });
  const full = {
    begin: () => admin.config('SET', 'maxmemory', '1'),
    end: () => admin.config('SET', 'maxmemory', '0'),
  };

  async function commandsRun(example: ScriptExample, evaluate: Evaluate): Promise<string[]> {
    await prepare(example);
    const commands = await commandsWithin(client, () => evaluate(example, client));
    return [...new Set(commands.map(([command = '']) => command.toUpperCase()))];
  }

  async function checkAcl(example: ScriptExample, evaluate: Evaluate): Promise<void> {
    for (const command of await commandsRun(example, evaluate)) {
      const fault = await expectHarmless(example, evaluate, forbidden(command));
      if (!(example.tolerates ?? /^PUBLISH$/).test(command))
        expect([command, fault]).toStrictEqual([command, expect.any(String)]);
    }
  }

  /** A full server checks a script at its first write only, so that it is refused as a whole, or not at all. */
  async function checkMemory(example: ScriptExample, evaluate: Evaluate): Promise<void> {
    await prepare(example);
    const before = await stateOf(admin);
    await full.begin();
    const fault = await faultOf(evaluate(example, client)).finally(() => full.end());
    if (!fault) return;
    expect(fault.message).toMatch(/\bOOM\b/);
    expect(await stateOf(admin)).toStrictEqual(before);
    await expectHarmless(example, evaluate, full);
  }

  it('each command in the text of a script runs in one of its examples', async () => {
    const missing = new Map<string, Set<string>>();
    for (const { script } of examples)
      missing.set(
        familyOf(script),
        new Set([...(missing.get(familyOf(script)) ?? []), ...commandsOf(script.lua)]),
      );
    for (const example of examples)
      for (const command of await commandsRun(example, alone))
        missing.get(familyOf(example.script))?.delete(command);
    const left = [...missing].map(([family, commands]) => [family, ...commands]);
    expect(left.filter(({ length }) => length > 1)).toStrictEqual([]);
  });

  describe.each(forms)('%s', (_form, evaluate) => {
    it.each(byName)('%s, by the ACL', (_, example) => checkAcl(example, evaluate));
    it.each(byName)('%s, by a full server', (_, example) => checkMemory(example, evaluate));

    it.each(mutants.filter(({ law }) => law === 8))('is red with $fault', async ({ example }) => {
      await expect(checkAcl(example, evaluate)).rejects.toThrow(/^expect\(/);
    });
  });
});
