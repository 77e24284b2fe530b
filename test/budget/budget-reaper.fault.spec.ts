import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { BudgetRoots, ShareRequest } from '../../lib/budget/budget.backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetReaper } from '../../lib/budget/budget.reaper.js';
import { RedisBudgetBackend } from '../../lib/budget/redis/budget.redis-backend.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { eventually } from '../support/eventually.js';
import { movedTime } from '../support/moved-time.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { buildWorker } from '../fault/workers/build-worker.js';

const REGISTRY = 'test/budget-roots';
const RETENTION_MS = 300;

const backendOn = (commandTimeoutMs = 5_000): RedisBudgetBackend =>
  new RedisBudgetBackend(new ScriptRunner(workerRedis().client(), commandTimeoutMs), {
    keyPrefix: 'test',
    retentionMs: RETENTION_MS,
  });

interface Process {
  readonly budgets: BudgetService;
  readonly told: string[];
}

const processes: Process[] = [];

/** One process of an app, with a connection of its own. */
function start(reaper: false | { everyMs: number } = { everyMs: 100 }, commandTimeoutMs?: number): Process {
  const told: string[] = [];
  const limits = [{ scope: 'user', period: { windowMs: 3_600_000 }, limit: 1_000_000 }];
  const budgets = new BudgetService(backendOn(commandTimeoutMs), resolveBudgetDefaults({ limits, reaper }), {
    onExpired: (root, ids) => told.push(...ids.map((id) => `${root} ${id}`)),
  });
  processes.push({ budgets, told });
  return { budgets, told };
}

let time: ReturnType<typeof movedTime> | undefined;

/** From here on the time of this process and of Redis stands still until the test moves it. */
const moved = (): ReturnType<typeof movedTime> => (time = movedTime());

beforeEach(freshRedis);
afterEach(async () => {
  await Promise.all(processes.splice(0).map(({ budgets }) => budgets.onModuleDestroy()));
  time?.end();
});

describe('several processes on one Redis', () => {
  let folder: string;
  let program: string;
  const children: ChildProcess[] = [];
  beforeAll(async () => {
    ({ folder, program } = await buildWorker('budget-worker'));
  });
  afterEach(async () => {
    await Promise.all(children.splice(0).map(kill));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  function spawnWorker(name: string, roots: string[], holds: number, ttlMs: number): ChildProcess {
    const args = [program, workerRedis().url, name, roots.join(','), String(holds), String(ttlMs)];
    const child = spawn(process.execPath, args, { stdio: 'inherit' });
    children.push(child);
    return child;
  }

  async function kill(child: ChildProcess): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, 'exit');
    child.kill('SIGKILL');
    await exit;
  }

  const listed = (key: string): Promise<string[]> => workerRedis().client().lrange(key, 0, -1);

  it('tell each hold that expired once, also those of one that was killed', async () => {
    const ready = async (...names: string[]): Promise<void> =>
      eventually(async () => expect((await listed('ready')).sort()).toStrictEqual(names.sort()));
    const names = ['a', 'b', 'c', 'victim'];
    const roots = ['shared', 'other'];
    const victim = spawnWorker('victim', [...roots, 'its own'], 40, 3_000);
    await ready('victim');
    await kill(victim);
    for (const name of names.slice(0, 3)) spawnWorker(name, roots, 40, 1_000);
    await ready(...names);

    const ids = (name: string, root: string): string[] =>
      Array.from({ length: 40 }, (_, i) => `${root} ${name}-${i}`);
    const expected = [
      ...names.flatMap((name) => roots.flatMap((root) => ids(name, root))),
      ...ids('victim', 'its own'),
    ];
    await eventually(async () => expect(await listed('told')).toHaveLength(expected.length));
    await sleep(500); // These processes have a time of their own.
    expect((await listed('told')).sort()).toStrictEqual(expected.sort());
  });
});

describe('a root whose process is gone', () => {
  it('is reaped by another that never used it, and forgotten when nothing is left of it', async () => {
    const { pass } = moved();
    const survivor = start();
    const gone = start({ everyMs: 60_000 });
    for (const root of ['acme', 'ümlaut = %20 {x}'])
      await gone.budgets.reserve({ root, scopes: ['user'], amount: 1, id: 'a', ttlMs: 50 });
    await pass(500); // After three rounds it is nobody's, and the next one adopts it.
    await eventually(() => expect(survivor.told.sort()).toStrictEqual(['acme a', 'ümlaut = %20 {x} a']));
    expect(gone.told).toStrictEqual([]);
    const redis = workerRedis().client();
    expect(await redis.pttl(REGISTRY)).toBeGreaterThan(0);
    await survivor.budgets.onModuleDestroy();
    // Windows and operations are over, so nothing is left to watch.
    workerRedis().clock.advance(2 * 3_600_000);
    start();
    await pass(500);
    await eventually(async () => expect(await redis.exists(REGISTRY)).toBe(0));
  });

  it('is not known to anybody with `reaper: false`', async () => {
    const { budgets } = start(false);
    await budgets.reserve({ scopes: ['user'], amount: 1, ttlMs: 50 });
    expect(await workerRedis().client().exists(REGISTRY)).toBe(0);
  });
});

describe('more roots than one process looks after', () => {
  const roots = Array.from({ length: 10_000 }, (_, i) => `root ${i}`);

  it('are told to others once each, and a new one takes the place of an old one', async () => {
    const client = workerRedis().client();
    await client.config('RESETSTAT');
    const reaper = new BudgetReaper(
      backendOn(),
      60_000,
      () => {},
      () => {},
    );
    for (const root of roots) reaper.touch(root);
    for (let i = 0; i < 100; i++) reaper.touch('new');
    await eventually(async () => expect(await client.zcard(REGISTRY)).toBe(10_001), { timeoutMs: 50_000 });
    const [, calls] = /cmdstat_evalsha:calls=(\d+)/.exec(await client.info('commandstats')) ?? [];
    expect(Number(calls)).toBeLessThan(10_050); // The first of them may have loaded the script.
    await reaper.stop();
  });

  it('are forgotten in one round where nothing is left of them', async () => {
    const { pass } = moved();
    const { clock } = workerRedis();
    clock.hold(Date.now() - 3_000);
    const backend = backendOn();
    await backend.roots.share({ watched: roots.slice(0, 5_500) });
    clock.reset();
    const shared: (readonly string[])[] = [];
    const share = (request: ShareRequest): ReturnType<BudgetRoots['share']> => {
      shared.push(request.watched);
      return backend.roots.share(request);
    };
    const reaper = new BudgetReaper(
      { reap: (request) => backend.reap(request), roots: { share } },
      1_000,
      () => {},
      () => {},
    );
    reaper.touch('mine');
    const client = workerRedis().client();
    await pass(1_000);
    await eventually(async () => expect(await client.zcard(REGISTRY)).toBeLessThan(1_000), {
      timeoutMs: 50_000,
    });
    // It tells what it watches once a round.
    expect(shared.slice(0, 7)).toStrictEqual([['mine'], ['mine'], [], [], [], [], []]);
    await reaper.stop();
  });

  it('are not asked for again in a round that Redis has failed', async () => {
    const { pass } = moved();
    const { clock } = workerRedis();
    clock.hold(Date.now() - 3_000);
    const backend = backendOn();
    await backend.roots.share({ watched: roots.slice(0, 2_500) });
    clock.reset();
    const shared: (readonly string[])[] = [];
    const share = async (request: ShareRequest): ReturnType<BudgetRoots['share']> => {
      shared.push(request.watched);
      if (shared.length > 2) throw new Error('Redis is away.');
      return backend.roots.share(request);
    };
    const faults: unknown[] = [];
    // It stays watched, so that each round begins with it.
    const mine = { expired: [], quarantined: [], purged: 0, nextInMs: 60_000 };
    const reaper = new BudgetReaper(
      { reap: async (request) => (request.root === 'mine' ? mine : backend.reap(request)), roots: { share } },
      1_000,
      () => {},
      (fault) => faults.push(fault),
    );
    reaper.touch('mine');
    await pass(1_000);
    // The time stands still during the round, which would end early on a slow machine.
    await eventually(() => expect(faults).toHaveLength(1), { timeoutMs: 50_000 });
    while (faults.length < 2) await pass(100);
    // The second fault is that of the next round, which tells what it watches.
    expect(shared.slice(0, 4)).toStrictEqual([['mine'], ['mine'], [], ['mine']]);
    await reaper.stop();
  });
});

describe('the registry of roots', () => {
  const { clock } = workerRedis();
  const adopt = { max: 10, afterMs: 1_000 };

  it('gives what nobody has kept for that long, to one process only', async () => {
    const [one, other] = [backendOn().roots, backendOn().roots];
    clock.hold(Date.now());
    await one.share({ watched: ['a', 'b', 'c'] });
    clock.advance(999);
    await one.share({ watched: ['b'] });
    expect((await other.share({ watched: [], adopt })).adopted).toStrictEqual([]);
    clock.advance(1);
    const both = await Promise.all([one, other].map((each) => each.share({ watched: [], adopt })));
    expect(both.flatMap(({ adopted }) => adopted).sort()).toStrictEqual(['a', 'c']);
    clock.advance(999);
    expect((await other.share({ watched: [], adopt: { ...adopt, max: 0 } })).adopted).toStrictEqual([]);
    expect((await other.share({ watched: [], adopt: { ...adopt, max: 1 } })).adopted).toStrictEqual(['b']);
  });

  it('forgets what was adopted and empty, unless somebody has kept it since', async () => {
    const { roots } = backendOn();
    clock.hold(Date.now());
    await roots.share({ watched: ['idle', 'used'] });
    clock.advance(1_000);
    const { atMs } = await roots.share({ watched: [], adopt });
    clock.advance(1);
    await roots.share({ watched: ['used'] });
    await roots.share({
      watched: [],
      done: new Map([
        ['idle', atMs],
        ['used', atMs],
      ]),
    });
    expect(await workerRedis().client().zrange(REGISTRY, '0', '-1')).toStrictEqual(['used']);
  });

  it('takes more roots than one call tells of', async () => {
    const { roots } = backendOn();
    const kept = Array.from({ length: 2_500 }, (_, i) => `root ${i}`);
    await roots.share({ watched: kept, adopt });
    expect(await workerRedis().client().zcard(REGISTRY)).toBe(2_500);
  });
});

it('a reap whose answer is late tells it all the same, once', async () => {
  const { budgets, told } = start(false, 100);
  await budgets.reserve({ scopes: ['user'], amount: 1, id: 'a', ttlMs: 50 });
  workerRedis().clock.advance(50);
  const client = workerRedis().client();
  await client.call('CLIENT', 'PAUSE', '400', 'ALL');
  await expect(budgets.reap()).rejects.toMatchObject({ code: 'NetworkTimeout' });
  expect(told).toStrictEqual([]);
  await eventually(() => expect(told).toStrictEqual(['default a']));
  expect(await budgets.reap()).toStrictEqual({ expired: [], purged: 0 });
  expect(told).toStrictEqual(['default a']);
});
