import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import type { Redis } from 'ioredis';
import { createRedisBackend, type LockBackend, type LockError } from 'nestjs-syncguard';
import { ASIDE } from '../../lib/lock/redis/lock.queue.fragments.js';
import { LockService } from '../../lib/lock/lock.service.js';
import { openConnection } from '../../lib/redis/redis.connect.js';
import { resolveOptions, type SyncGuardOptions } from '../../lib/module/syncguard.options.js';
import { ProcessChannel } from '../../lib/script/process-channel.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { granted } from './lock.contract.js';
import { pauseClients } from '../support/engines/faults.js';
import { eventually } from '../support/eventually.js';
import { stopwatch } from '../support/stopwatch.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { buildWorker } from '../fault/workers/build-worker.js';

const TTL_MS = 30_000;
const QUEUE = 'syncguard/queue:order';
const OTHER = { key: 'other', ttlMs: TTL_MS };
/** Waiters look by themselves after a minute: whatever comes sooner has been told. */
const POLL_MS = 60_000;

const serviceOn = (backend: LockBackend, lock: SyncGuardOptions['lock'] = {}): LockService =>
  new LockService(backend, resolveOptions({ lock: { pollMs: POLL_MS, timeoutMs: 60_000, ...lock } }));

interface Told {
  readonly event: string;
  readonly name: string;
  readonly fence: string;
  readonly atMs: number;
}

class Worker {
  readonly told: Told[] = [];

  constructor(readonly child: ChildProcess) {
    child.on('message', (event) => this.told.push(event as Told));
  }

  order(what: string, name = '', more: object = {}): void {
    this.child.send({ do: what, name, key: 'order', ...more });
  }

  heard(event: string, name = ''): Told | undefined {
    return this.told.find((each) => each.event === event && (name === '' || each.name === name));
  }
}

describe('a queue of several processes', () => {
  let folder: string;
  let program: string;
  const workers: Worker[] = [];
  beforeAll(async () => {
    ({ folder, program } = await buildWorker('queue-worker'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeEach(freshRedis);
  afterEach(async () => {
    for (const worker of workers.splice(0)) {
      const { child } = worker;
      if (child.exitCode === null && child.signalCode === null) await kill(worker);
    }
  });

  async function start(count: number): Promise<Worker[]> {
    const started = Array.from({ length: count }, () => new Worker(fork(program, [workerRedis().url])));
    workers.push(...started);
    await eventually(() => expect(started.every((worker) => worker.heard('ready'))).toBe(true));
    return started;
  }
  const client = () => workerRedis().client();
  const waiting = (count: number): Promise<unknown> => {
    const redis = client();
    return eventually(async () => expect(await redis.zcard(QUEUE)).toBe(count));
  };
  /** Each of the workers waits behind the ones before it. */
  async function queueUp(...inOrder: Worker[]): Promise<void> {
    const before = await client().zcard(QUEUE);
    for (const [i, worker] of inOrder.entries()) {
      worker.order('lock', `w${i}`);
      await waiting(before + i + 1);
    }
  }
  const isInside = (worker: Worker, name: string): Promise<Told> =>
    eventually(() => {
      const told = worker.heard('in', name);
      expect(told).toBeDefined();
      return told as Told;
    });
  const kill = async ({ child }: Worker): Promise<void> => {
    const exit = once(child, 'exit');
    child.kill('SIGKILL');
    await exit;
  };
  const dieAtItsTurn = async (worker: Worker): Promise<void> => {
    worker.order('die at the next turn');
    await eventually(() => expect(worker.heard('armed')).toBeDefined());
  };
  const hold = async () =>
    granted(await createRedisBackend(client()).acquire({ key: 'order', ttlMs: TTL_MS }));
  /** The process of the first waiter. */
  const processIn = async (queue: string): Promise<string> => {
    const [waiter = ''] = await client().zrangebyscore(queue, 0, '+inf');
    return waiter.slice(22, 38);
  };
  const nothingIsLeft = (): Promise<unknown> => {
    const redis = client();
    return eventually(async () =>
      expect((await redis.keys('syncguard*')).filter((key) => !key.includes('fence:'))).toStrictEqual([]),
    );
  };

  it('300 sections by 16 workers in 4 processes: each has its turns, never two inside', async () => {
    const started = await start(4);
    const held = await hold();
    const names = Array.from({ length: 16 }, (_, i) => `w${i}`);
    for (const [i, name] of names.entries()) started[i % 4]?.order('work', name);
    await waiting(16);
    await held.release();
    const ended = () => started.flatMap(({ told }) => told).filter(({ event }) => event === 'out');
    await eventually(() => expect(ended()).toHaveLength(16));
    expect(started.flatMap(({ told }) => told).filter(({ event }) => event === 'failed')).toStrictEqual([]);

    type Section = { name: string; fence: string; inside: number };
    const sections = (await client().lrange('history', 0, -1)).map((json) => JSON.parse(json) as Section);
    expect(sections).toHaveLength(300);
    expect(sections.filter(({ inside }) => inside !== 1)).toStrictEqual([]);
    const fences = sections.map(({ fence }) => fence);
    expect(fences).toStrictEqual([...new Set(fences)].sort());
    const turns = names.map((name) => sections.filter((section) => section.name === name).length);
    expect(Math.max(...turns) - Math.min(...turns)).toBeLessThanOrEqual(1);
    await nothingIsLeft();
  });

  it.each<[string, (head: Worker) => unknown]>([
    ['was killed while it waited', kill],
    ['stands still', (head) => head.child.kill('SIGSTOP')],
    ['is killed in the instant of the hand-over', dieAtItsTurn],
  ])(
    'the head of the queue %s: the others go on, in order',
    async (_, fault) => {
      const [head, second, third] = (await start(3)) as [Worker, Worker, Worker];
      const held = await hold();
      await queueUp(head, second, third);
      await fault(head);
      const releasedMs = performance.timeOrigin + performance.now();
      await held.release();
      const { atMs } = await isInside(second, 'w1');
      // A second is promised; a busy machine may take longer. Nobody has looked by itself.
      expect(atMs - releasedMs).toBeLessThan(5_000);
      expect(third.heard('in')).toBeUndefined();
      second.order('leave', 'w1');
      await isInside(third, 'w2');
      third.order('leave', 'w2');
      if (head.child.signalCode === null && !head.child.killed) await once(head.child, 'exit');
    },
    60_000,
  );

  it('a head that stood still keeps its ticket: it is served before those that came after it', async () => {
    const [head, second, third] = (await start(3)) as [Worker, Worker, Worker];
    const held = await hold();
    await queueUp(head, second, third);
    head.child.kill('SIGSTOP');
    await held.release();
    await isInside(second, 'w1');
    head.child.kill('SIGCONT');
    await waiting(2);
    second.order('leave', 'w1');
    await isInside(head, 'w0');
    expect(third.heard('in')).toBeUndefined();
    head.order('leave', 'w0');
    await isInside(third, 'w2');
    third.order('leave', 'w2');
    await nothingIsLeft();
  });

  it('a process with several waiters that is gone costs one claim, not one each', async () => {
    const [gone, last] = (await start(2)) as [Worker, Worker];
    const held = await hold();
    await queueUp(gone, gone, gone, gone, last);
    await dieAtItsTurn(gone);
    await held.release();
    await isInside(last, 'w4');
    last.order('leave', 'w4');
    // Its places stay for twice its `pollMs`: it might only have stood still.
    await eventually(() => expect(last.heard('out', 'w4')).toBeDefined());
    workerRedis().clock.advance(121_000);
    await nothingIsLeft();
  });

  it('a process that stands still with 12 waiters costs one claim, and they keep their places', async () => {
    const [still, last] = (await start(2)) as [Worker, Worker];
    const held = await hold();
    await queueUp(...Array<Worker>(12).fill(still), last, last);
    still.child.kill('SIGSTOP');
    const releasedMs = performance.timeOrigin + performance.now();
    await held.release();
    const { atMs } = await isInside(last, 'w12');
    expect(atMs - releasedMs).toBeLessThan(4_000); // A claim for each of them would take 6 s.
    // A hand-over walks past the 12, and so it puts them aside.
    last.order('leave', 'w12');
    await isInside(last, 'w13');
    const redis = client();
    const name = await processIn(QUEUE);
    const putAside = () => redis.zcount(QUEUE, ASIDE, '+inf');
    expect(await putAside()).toBeGreaterThan(0);
    still.child.kill('SIGCONT');
    // Its first attempt, which takes the mark of the process away, enters all of them again in the same step.
    const left = await eventually(async () => {
      const [mark, aside] =
        (await redis.multi().zscore(QUEUE, name).zcount(QUEUE, ASIDE, '+inf').exec()) ?? [];
      expect(mark?.[1]).toBeNull();
      return aside?.[1];
    });
    expect(left).toBe(0);
    last.order('lock', 'late');
    await waiting(13);
    last.order('leave', 'w13');
    for (let i = 0; i < 12; i++) {
      await isInside(still, `w${i}`);
      still.order('leave', `w${i}`);
    }
    await isInside(last, 'late');
    last.order('leave', 'late');
    await nothingIsLeft();
  });

  it('a process whose loop stands still at a hand-over loses none of its waiters', async () => {
    const [blocked] = (await start(1)) as [Worker];
    const held = await hold();
    await queueUp(...Array<Worker>(12).fill(blocked));
    blocked.order('block', '', { ms: 1_500 });
    await eventually(() => expect(blocked.heard('blocked')).toBeDefined());
    const redis = client();
    await held.release();
    await eventually(async () => expect(await redis.exists('syncguard:order')).toBe(0));
    for (let i = 0; i < 12; i++) {
      await isInside(blocked, `w${i}`);
      blocked.order('leave', `w${i}`);
    }
    await nothingIsLeft();
  });

  it('the holder is killed: the first waiter is in when its TTL is over', async () => {
    const [holder, first] = (await start(2)) as [Worker, Worker];
    holder.order('lock', 'holder', { ttlMs: 1_500 });
    await isInside(holder, 'holder');
    await queueUp(first);
    holder.child.kill('SIGKILL');
    await isInside(first, 'w0');
    first.order('leave', 'w0');
    await nothingIsLeft();
  });
});

describe('a queue when something fails', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  beforeAll(async () => {
    server = await startRedisServer();
  });
  afterAll(() => server.stop());
  beforeEach(async () => {
    proxy = await startTcpProxy(server.port);
    await server.client().flushall();
  });
  afterEach(async () => {
    server.closeClients();
    await proxy.stop();
  });
  const own = (): LockBackend =>
    createRedisBackend(server.track(openConnection(proxy.url) as unknown as Redis));
  const theirs = (): LockBackend => createRedisBackend(server.client({ port: proxy.port }));
  const queued = (count: number): Promise<unknown> =>
    eventually(async () => expect(await server.client().zcard(QUEUE)).toBe(count));
  const listeners = async (): Promise<string[]> =>
    (await server.client().pubsub('CHANNELS', 'syncguard/wake:*')) as string[];
  const theListener = (): Promise<string> =>
    eventually(async () => {
      const channels = await listeners();
      expect(channels).toHaveLength(1);
      return channels[0] as string;
    });
  const nothingIsLeft = (): Promise<unknown> =>
    eventually(async () =>
      expect((await server.client().keys('*')).filter((key) => !key.includes('fence:'))).toStrictEqual([]),
    );
  const hold = async () =>
    granted(await createRedisBackend(server.client()).acquire({ key: 'order', ttlMs: TTL_MS }));

  it.each(['own', 'theirs'] as const)(
    'a reply that is lost while one waits costs neither the place nor a lock: %s',
    async (kind) => {
      const held = await hold();
      const locks = serviceOn(kind === 'own' ? own() : theirs());
      await locks.isLocked({ key: 'warm' });
      proxy.cutAfterRequest();
      const order: number[] = [];
      const waiter = locks.lock(() => void order.push(1), { key: 'order', retryDelayMs: 10 });
      await queued(1);
      const second = serviceOn(createRedisBackend(server.client())).lock(() => void order.push(2), {
        key: 'order',
      });
      await queued(2);
      await eventually(async () => expect(await listeners()).toHaveLength(2));
      await held.release();
      await Promise.all([waiter, second]);
      expect(order).toStrictEqual([1, 2]);
      await nothingIsLeft();
    },
  );

  it('a release whose reply is lost after it handed over is a release', async () => {
    const holder = serviceOn(theirs());
    let waiter!: Promise<string>;
    await holder.lock(
      async () => {
        waiter = serviceOn(createRedisBackend(server.client())).lock(() => 'in', { key: 'order' });
        await queued(1);
        await eventually(async () => expect(await listeners()).toHaveLength(1));
        proxy.cutAfterRequest();
      },
      { key: 'order' },
    );
    expect(await waiter).toBe('in');
    await nothingIsLeft();
  });

  it.each(['own', 'theirs'] as const)(
    'the reply to a claim is lost: the lock is taken all the same: %s',
    async (kind) => {
      const held = await hold();
      const locks = serviceOn(kind === 'own' ? own() : theirs());
      const waiter = locks.lock(() => 'in', { key: 'order', retryDelayMs: 10 });
      await queued(1);
      await eventually(async () => expect(await listeners()).toHaveLength(1));
      proxy.cutAfterRequest();
      await held.release();
      expect(await waiter).toBe('in');
      await nothingIsLeft();
    },
  );

  it('a subscriber whose connection is killed listens again, and its waiters look', async () => {
    const held = await hold();
    const locks = serviceOn(createRedisBackend(server.client()));
    const order: number[] = [];
    const waiters = [];
    for (let i = 0; i < 3; i++) {
      waiters.push(locks.lock(() => void order.push(i), { key: 'order' }));
      await queued(i + 1);
    }
    const channel = await theListener();
    for (let i = 0; i < 3; i++) {
      await server.client().call('CLIENT', 'KILL', 'TYPE', 'pubsub');
      await eventually(async () => expect(await listeners()).toStrictEqual([channel]));
    }
    await server.client().call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await held.release(); // Nobody listens.
    await Promise.all(waiters);
    expect(order).toStrictEqual([0, 1, 2]);
    await nothingIsLeft();
  });

  it('a connection that hears nothing any more is noticed, and its waiters look more often until it is back', async () => {
    const held = await hold();
    const client = server.client();
    const direct = client.duplicate.bind(client);
    client.duplicate = (options) => direct({ ...options, port: proxy.port });
    const locks = serviceOn(createRedisBackend(client));
    const order: number[] = [];
    const waiters = [];
    for (let i = 0; i < 20; i++) {
      waiters.push(locks.lock(() => void order.push(i), { key: 'order' }));
      await queued(i + 1);
    }
    await theListener();
    proxy.halfOpen();
    const elapsedMs = stopwatch();
    await held.release();
    await Promise.all(waiters);
    // At a look a second it would take 20 s.
    expect(elapsedMs()).toBeLessThan(12_000);
    expect(order).toStrictEqual([...Array(20).keys()]);
    await nothingIsLeft();
  });

  it('of many that wait one looks for all of them', async () => {
    const held = await hold();
    const locks = serviceOn(createRedisBackend(server.client()), { pollMs: 600_000 });
    const waiters = Array.from({ length: 500 }, () => locks.lock(() => 1, { key: 'order' }));
    const admin = server.client();
    // All have entered the queue under the name by which their process is told.
    await eventually(async () => {
      const members = await admin.zrange(QUEUE, '0', '-1');
      expect(members.filter((member) => member.length === 38)).toHaveLength(500);
    });
    const looks = new Map<string, number>();
    const monitor = await admin.monitor();
    monitor.on('monitor', (_time, [command, key, , waiter = '']: string[]) => {
      if (command?.toUpperCase() === 'ZADD' && key === QUEUE) looks.set(waiter, (looks.get(waiter) ?? 0) + 1);
    });
    await eventually(() => expect(Math.max(...looks.values())).toBeGreaterThanOrEqual(4));
    monitor.disconnect();
    await held.release();
    expect(await Promise.all(waiters)).toHaveLength(500);
    await nothingIsLeft();
    // One has looked four times. If the others looked as well, they have done so meanwhile, however long it was.
    expect(looks.size).toBeLessThan(50);
  });

  /** Places of a process that hears and does nothing, before all others. Returns the lockIds that it was told. */
  async function placesOf(process: string, count: number): Promise<string[]> {
    const told: string[] = [];
    const deaf = server.client();
    await deaf.subscribe(`syncguard/wake:${process}`);
    deaf.on('message', (_channel, lockId) => told.push(lockId));
    for (let i = 0; i < count; i++)
      await server.client().zadd(QUEUE, 1_000 + i, `${i}`.padStart(22, '0') + process);
    return told;
  }
  const holder = async (): Promise<string | undefined> =>
    (JSON.parse((await server.client().get('syncguard:order')) ?? '{}') as { lockId?: string }).lockId;

  it.each([
    ['an attempt', true],
    ['the one that has released', false],
  ])(
    'a process that has missed a claim is passed over whole, if %s comes first after it',
    async (_, asks) => {
      const held = await hold();
      const told = await placesOf('StopStopStopStop', 5);
      const waiter = serviceOn(own()).lock(() => 'in', { key: 'order' });
      await queued(6);
      await eventually(async () => expect(await listeners()).toHaveLength(2));
      await held.release();
      await eventually(() => expect(told).toHaveLength(1));
      server.clock.advance(501);
      if (asks) await createRedisBackend(server.client()).acquire({ key: 'order', ttlMs: 100 });
      expect(await waiter).toBe('in');
      expect(told).toStrictEqual(['0'.padStart(22, '0')]); // Nobody else of that process has got it.
      server.clock.reset();
    },
  );

  it.each([
    ['is told of its turn', true],
    ['is passed over at once when it is gone', false],
  ])('a process whose name begins with - %s', async (_, listens) => {
    const held = await hold();
    const waiter = serviceOn(own(), { pollMs: 600_000 }).lock(() => 'in', { key: 'order' });
    await queued(1);
    await theListener();
    const told = listens ? await placesOf('-oneStopStopStop', 1) : [];
    if (!listens) await server.client().zadd(QUEUE, 1_000, `${'0'.padStart(22, '0')}-oneGoneGoneGone`);
    await held.release();
    if (listens) expect(await holder()).toMatch(/^0/);
    else expect(String(await holder())).not.toMatch(/^0/); // It costs no claim. The waiter may be through already.
    if (listens) await eventually(() => expect(told).toHaveLength(1));
    expect(await waiter).toBe('in');
  });

  it('hand-overs do not walk past the places of a process that was passed over, be they thousands', async () => {
    const admin = server.client();
    const held = await hold();
    const now = Date.now();
    const places = Array.from({ length: 5_000 }, (_, i) => [
      (now - 10_000) * 1_000 + i,
      `${i}`.padStart(22, '0'),
    ]);
    for (let i = 0; i < 5_000; i += 1_000)
      await admin.zadd(
        QUEUE,
        ...places.slice(i, i + 1_000).flatMap(([at, id]) => [at!, `${id}GoneGoneGoneGone`]),
      );
    await admin.zadd(QUEUE, -(now - 1_000), 'GoneGoneGoneGone');
    const locks = serviceOn(own());
    const order: number[] = [];
    const waiters = [];
    for (let i = 0; i < 20; i++) {
      waiters.push(locks.lock(() => void order.push(i), { key: 'order' }));
      await queued(5_002 + i);
    }
    await admin.config('RESETSTAT');
    await held.release();
    await Promise.all(waiters);
    const [, walks] = /cmdstat_zrange:calls=(\d+)/.exec(await admin.info('commandstats')) ?? [];
    // Once past all of them are 80 steps.
    expect(Number(walks)).toBeLessThan(500);
    expect(order).toStrictEqual([...Array(20).keys()]);
    expect(await admin.zcard(QUEUE)).toBe(5_001);
  });

  it('a queue lives as long as its most patient waiter needs', async () => {
    const held = await hold();
    const waiter = serviceOn(own(), { pollMs: 600_000 }).lock(() => 'in', { key: 'order' });
    await queued(1);
    expect(await server.client().pttl(QUEUE)).toBeGreaterThan(600_000);
    const another = serviceOn(own()).lock(() => 'in', { key: 'order' });
    await queued(2);
    expect(await server.client().pttl(QUEUE)).toBeGreaterThan(600_000);
    await held.release();
    expect(await Promise.all([waiter, another])).toStrictEqual(['in', 'in']);
    await nothingIsLeft();
  });

  it('a waiter that is woken while the server owes it a reply lets the process run, and is served', async () => {
    const held = await hold();
    const backend = createRedisBackend(server.client(), { commandTimeoutMs: 200 });
    const waiter = serviceOn(backend).lock(() => 'in', { key: 'order', timeoutMs: 20_000, pollMs: 100 });
    await queued(1);
    const channel = await theListener();
    const heal = await pauseClients(server, 30_000, 'WRITE'); // SUBSCRIBE is answered, the next look is not
    await eventually(async () =>
      expect(await server.client().info('clients')).toContain('blocked_clients:1'),
    );
    // What was sent later has failed as well, so the look has.
    await expect(backend.isLocked({ key: 'other' })).rejects.toMatchObject({ code: 'NetworkTimeout' });
    await server.client().call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await eventually(async () => expect(await listeners()).toStrictEqual([channel])); // Each waiter is woken.
    await heal();
    await held.release();
    expect(await waiter).toBe('in');
    await nothingIsLeft();
  });

  it('a subscriber is opened when somebody waits for the first time, and only once', async () => {
    const locks = serviceOn(createRedisBackend(server.client()));
    await locks.lock(() => 1, { key: 'order' });
    expect(await listeners()).toHaveLength(0);
    const held = await hold();
    const waiters = Array.from({ length: 20 }, () => locks.lock(() => 1, { key: 'order' }));
    await queued(20);
    await eventually(async () => expect(await listeners()).toHaveLength(1));
    const connections = (await server.client().client('LIST')) as string;
    expect(connections.match(/name=syncguard-waiting/g)).toHaveLength(1);
    await held.release();
    await Promise.all(waiters);
    await nothingIsLeft();
  });

  it('ends with its client, and keeps no listener behind', async () => {
    const client = server.client();
    const locks = serviceOn(createRedisBackend(client));
    const held = await hold();
    const waiter = locks.lock(() => 1, { key: 'order' });
    await eventually(async () => expect(await listeners()).toHaveLength(1));
    await held.release();
    await waiter;
    client.disconnect();
    await eventually(async () => expect(await listeners()).toHaveLength(0));
  });

  it.each(['quit', 'disconnect'] as const)(
    'those that wait for as long as it takes end when their client is closed for good, by %s()',
    async (close) => {
      const client = server.client();
      const locks = serviceOn(createRedisBackend(client), { timeoutMs: Infinity });
      const held = await hold();
      const ends: string[] = [];
      const controller = new AbortController();
      const ask = (options: object): Promise<unknown> =>
        locks
          .lock(() => 'in', { key: 'order', signal: controller.signal, ...options })
          .catch(({ code }: LockError) => ends.push(code));
      for (let i = 0; i < 20; i++) void ask({});
      void ask({ fair: false });
      await queued(20);
      await client[close]();
      await eventually(() => expect(ends).toStrictEqual(Array(21).fill('ServiceUnavailable'))).finally(() =>
        controller.abort(),
      );
      await held.release();
    },
  );

  it.each([
    ['PUBLISH', ['-publish']],
    ['SUBSCRIBE', ['-subscribe']],
    ['channels', ['resetchannels']],
  ])('an ACL without %s costs speed and one warning, no lock and no order', async (_, rules) => {
    await server.client().call('ACL', 'SETUSER', 'poor', 'reset', 'on', '>x', '~*', '&*', '+@all', ...rules);
    const warnings: string[] = [];
    const backend = (): LockBackend =>
      createRedisBackend(server.client({ username: 'poor', password: 'x' }), {
        warn: (message) => warnings.push(message),
      });
    const [one, two] = [serviceOn(backend()), serviceOn(backend())];
    const held = await hold();
    const order: number[] = [];
    const waiters = [];
    for (let i = 0; i < 6; i++) {
      waiters.push((i % 2 ? one : two).lock(() => void order.push(i), { key: 'order' }));
      await queued(i + 1);
    }
    await held.release();
    await Promise.all(waiters);
    expect(order).toStrictEqual([0, 1, 2, 3, 4, 5]);
    expect(warnings).toStrictEqual(Array(2).fill(expect.stringMatching(/^REDIS_NO_PUBSUB: /)));
    await nothingIsLeft();
  });

  it('a hand-over is taken at once that is heard before the reply by which the call learns that it waits', async () => {
    const [held, other] = [await hold(), await createRedisBackend(server.client()).acquire(OTHER)];
    const joins = jest.spyOn(ProcessChannel.prototype, 'join');
    const locks = serviceOn(own());
    const heard: string[] = [];
    (joins.mock.contexts[0] as ProcessChannel).join({
      onMessage: (message) => heard.push(message),
      isNeeded: () => false,
    });
    const elsewhere = locks.lock(() => {}, { key: OTHER.key });
    await theListener();
    let deliver!: () => void;
    const delivered = new Promise<void>((resolve) => (deliver = resolve));
    const { run } = ScriptRunner.prototype;
    jest.spyOn(ScriptRunner.prototype, 'run').mockImplementationOnce(async function (
      this: ScriptRunner,
      ...args
    ) {
      const reply: unknown = await run.apply(this, args);
      await delivered;
      return reply;
    });
    const waiter = locks.lock(() => performance.now(), { key: 'order' });
    await queued(1);
    await held.release();
    await eventually(() => expect(heard).toHaveLength(1));
    const sinceMs = performance.now();
    deliver();
    // A message that was not heeded would be made up for after half a second, when the claim is over.
    expect((await waiter) - sinceMs).toBeLessThan(450);
    await granted(other).release();
    await elsewhere;
    await nothingIsLeft();
  });

  it('no release that comes about when somebody queues is missed', async () => {
    const [one, two] = [serviceOn(own()), serviceOn(own())];
    let worstMs = 0;
    for (let i = 0; i < 400; i++) {
      let releasedMs = 0;
      let entered!: () => void;
      const inside = new Promise<void>((resolve) => (entered = resolve));
      const holder = one.lock(
        async () => {
          entered();
          const untilMs = performance.now() + (i % 40) / 20;
          while (performance.now() < untilMs) await new Promise((resolve) => setImmediate(resolve));
          releasedMs = performance.now();
        },
        { key: 'order' },
      );
      await inside;
      await two.lock(() => (worstMs = Math.max(worstMs, performance.now() - releasedMs)), { key: 'order' });
      await holder;
    }
    // A wake-up that is lost would be noticed after a minute, a claim that is not taken after half a second.
    expect(worstMs).toBeLessThan(450);
    await nothingIsLeft();
  });

  it('a foreign value under the name of a queue is said, and leaves the lock alone', async () => {
    const held = await hold();
    await server.client().set(QUEUE, 'mine');
    const failed = await serviceOn(own())
      .lock(() => 1, { key: 'order' })
      .catch((error: unknown) => error as LockError);
    expect(failed).toMatchObject({ code: 'InvalidArgument' });
    await server.client().del(QUEUE);
    expect(await held.release()).toStrictEqual({ ok: true });
  });

  it('a full server still hands over', async () => {
    const held = await hold();
    const waiter = serviceOn(own()).lock(() => 'in', { key: 'order' });
    await queued(1);
    await eventually(async () => expect(await listeners()).toHaveLength(1));
    await server.client().config('SET', 'maxmemory', '1');
    try {
      await held.release();
      expect(await waiter).toBe('in');
    } finally {
      await server.client().config('SET', 'maxmemory', '0');
    }
    await nothingIsLeft();
  });
});
