import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { BudgetBackend, RootsRequest } from '../../lib/budget/budget.backend.js';
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
    await pass(60_500); // The process that is gone would have come by then.
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

const EVERY_MS = 1_000;
const take = (max = 10): RootsRequest => ({ used: [], reaped: [], max, everyMs: EVERY_MS });
const use = (...used: string[]): RootsRequest => ({ ...take(0), used });

describe('many roots', () => {
  const roots = Array.from({ length: 10_000 }, (_, i) => `root ${i}`);
  const reaperOn = (
    backend: Pick<BudgetBackend, 'reap' | 'roots'>,
    everyMs = EVERY_MS,
    onFault: (fault: unknown) => void = () => {},
  ): BudgetReaper => new BudgetReaper(backend, everyMs, () => {}, onFault);

  it('are told to others once each', async () => {
    const client = workerRedis().client();
    await client.config('RESETSTAT');
    const reaper = reaperOn(backendOn(), 60_000);
    for (const root of roots) reaper.touch(root);
    for (let i = 0; i < 100; i++) reaper.touch('new');
    await eventually(async () => expect(await client.zcard(REGISTRY)).toBe(10_001), { timeoutMs: 50_000 });
    const [, calls] = /cmdstat_evalsha:calls=(\d+)/.exec(await client.info('commandstats')) ?? [];
    expect(Number(calls)).toBeLessThan(10_050); // The first of them may have loaded the script.
    await reaper.stop();
  });

  it('are told again in each round in which they were used, a thousand at a time', async () => {
    const { pass } = moved();
    const told: number[] = [];
    const backend = {
      reap: () => Promise.reject(new Error('nothing is due')),
      roots: async ({ used, max }: RootsRequest) => {
        if (max > 0) told.push(used.length);
        return { untilMs: 0, roots: [] };
      },
    };
    const reaper = reaperOn(backend);
    for (const root of roots.slice(0, 2_500)) reaper.touch(root);
    await pass(2 * EVERY_MS);
    expect(told.slice(0, 4)).toStrictEqual([1_000, 1_000, 500, 0]);
    await reaper.stop();
  });

  /** So many roots that are due and empty, and a reaper whose calls for more are listed. */
  async function manyDue(count: number, failsFrom = Infinity) {
    const { pass } = moved();
    const { clock } = workerRedis();
    clock.hold(Date.now() - 2 * EVERY_MS);
    const backend = backendOn();
    await backend.roots(use(...roots.slice(0, count)));
    clock.reset();
    const told: (readonly string[])[] = [];
    const faults: unknown[] = [];
    const listed = async (request: RootsRequest): ReturnType<BudgetBackend['roots']> => {
      told.push(request.used);
      if (told.length >= failsFrom) throw new Error('Redis is away.');
      return backend.roots(request);
    };
    const reaper = reaperOn({ reap: (request) => backend.reap(request), roots: listed }, EVERY_MS, (fault) =>
      faults.push(fault),
    );
    reaper.touch('mine');
    await pass(EVERY_MS);
    return { pass, told, faults, reaper };
  }

  it('are forgotten in one round where nothing is left of them', async () => {
    const { told, reaper } = await manyDue(5_500);
    const client = workerRedis().client();
    await eventually(async () => expect(await client.zcard(REGISTRY)).toBeLessThan(1_000), {
      timeoutMs: 50_000,
    });
    // It tells what was used once a round.
    expect(told.slice(0, 7)).toStrictEqual([['mine'], ['mine'], [], [], [], [], []]);
    await reaper.stop();
  });

  it('are not asked for again in a round that Redis has failed', async () => {
    const { pass, told, faults, reaper } = await manyDue(2_500, 3);
    // The time stands still during the round, which would end early on a slow machine.
    await eventually(() => expect(faults).toHaveLength(1), { timeoutMs: 50_000 });
    reaper.touch('other');
    while (faults.length < 3) await pass(100);
    // The second fault is that of the root which was used then, the third that of the next round, which tells of it again.
    expect(told.slice(0, 5)).toStrictEqual([['mine'], ['mine'], [], ['other'], ['other']]);
    await reaper.stop();
  });
});

describe('the registry of roots', () => {
  const { clock } = workerRedis();
  const taken = async (...requests: RootsRequest[]): Promise<string[]> => {
    const replies = await Promise.all(requests.map((request) => backendOn().roots(request)));
    return replies.flatMap(({ roots }) => roots).sort();
  };

  it('gives a root to one process, a round after its first use, and again where that process is silent', async () => {
    clock.hold(Date.now());
    await taken(use('a', 'b', 'c'));
    clock.advance(EVERY_MS - 1);
    await taken(use('b'));
    expect(await taken(take())).toStrictEqual([]);
    clock.advance(1);
    expect(await taken(take(), take())).toStrictEqual(['a', 'b', 'c']);
    await taken(use('c'));
    clock.advance(EVERY_MS);
    expect(await taken(take())).toStrictEqual(['c']);
    clock.advance(2 * EVERY_MS - 1);
    expect(await taken(take())).toStrictEqual([]);
    clock.advance(1);
    expect(await taken(take(1))).toHaveLength(1);
  });

  it('forgets what was empty, and comes to the rest when it is told, unless they were used since', async () => {
    const client = workerRedis().client();
    clock.hold(Date.now());
    const names = ['empty', 'used', 'later', 'late'];
    await taken(use(...names));
    clock.advance(EVERY_MS);
    const { untilMs } = await backendOn().roots(take());
    clock.advance(1);
    await taken(use('used'));
    const report = (root: string, nextInMs: number | null): RootsRequest => ({
      ...take(0),
      reaped: [{ root, untilMs, nextInMs }],
    });
    for (const root of ['empty', 'used']) await taken(report(root, null));
    await taken(report('later', 60_000));
    const now = clock.now();
    clock.advance(2 * EVERY_MS);
    // It may have been used when that could no longer show.
    await taken(report('late', null));
    expect(await client.zrange(REGISTRY, '0', '-1', 'WITHSCORES')).toStrictEqual([
      ...['used', String(now + EVERY_MS), 'late', String(untilMs), 'later', String(now + 60_000)],
    ]);
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
