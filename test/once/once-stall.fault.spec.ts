import { type ChildProcess, fork } from 'node:child_process';
import { once as onceHeard } from 'node:events';
import { rmSync } from 'node:fs';
import { onceOn } from '../support/redis-backends.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { buildWorker } from '../fault/workers/build-worker.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { onceService } from './support.js';

interface Told {
  readonly event: string;
  readonly [name: string]: unknown;
}

class Worker {
  readonly told: Told[] = [];

  constructor(
    readonly name: string,
    readonly child: ChildProcess,
  ) {
    child.on('message', (event) => this.told.push(event as Told));
  }

  order(what: 'run' | 'leave'): void {
    this.child.send({ do: what, name: this.name });
  }

  heard(event: string): Promise<Told> {
    return eventually(() => {
      const told = this.told.find((each) => each.event === event);
      expect(told).toBeDefined();
      return told as Told;
    });
  }
}

describe('OnceService in several processes', () => {
  let folder: string;
  let program: string;
  const workers: Worker[] = [];
  beforeAll(async () => {
    ({ folder, program } = await buildWorker('once-worker'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeEach(freshRedis);
  afterEach(async () => {
    for (const { child } of workers.splice(0)) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const exit = onceHeard(child, 'exit');
      child.kill('SIGKILL');
      await exit;
    }
  });

  async function start(name: string): Promise<Worker> {
    const worker = new Worker(name, fork(program, [workerRedis().url]));
    workers.push(worker);
    await worker.heard('ready');
    return worker;
  }
  const record = () => service().get('order');
  const service = () => onceService(onceOn(new ScriptRunner(workerRedis().client(), 10_000), 'app'));

  /** The first runs and stands still, until the second has its turn. */
  async function overtaken(): Promise<{ first: Worker; second: Worker }> {
    const [first, second] = [await start('first'), await start('second')];
    first.order('run');
    const { attempt, fence } = await first.heard('in');
    expect(attempt).toBe(1);
    first.child.kill('SIGSTOP');
    second.order('run');
    const next = await second.heard('in');
    expect(next['attempt']).toBe(2);
    expect((next['fence'] as string) > (fence as string)).toBe(true);
    return { first, second };
  }

  const isLost = async (first: Worker): Promise<void> => {
    first.child.kill('SIGCONT');
    first.order('leave');
    expect(await first.heard('left')).toMatchObject({ isAborted: true });
    expect(await first.heard('failed')).toStrictEqual({ event: 'failed', code: 'OnceLost' });
  };

  it('a process that stood still past its lease is told, while the next one runs', async () => {
    const { first, second } = await overtaken();
    await isLost(first);
    expect(await record()).toMatchObject({ state: 'running', attempt: 2 });
    second.order('leave');
    expect(await second.heard('out')).toMatchObject({ value: 'second', attempt: 2, replayed: false });
    expect(await service().run(() => 'third', { key: 'order' })).toMatchObject({ value: 'second' });
  });

  it('one that was killed is followed by the call that waits, as attempt 2', async () => {
    const [first, second] = [await start('first'), await start('second')];
    first.order('run');
    await first.heard('in');
    second.order('run');
    first.child.kill('SIGKILL');
    expect(await second.heard('in')).toMatchObject({ attempt: 2 });
    second.order('leave');
    expect(await second.heard('out')).toMatchObject({ value: 'second' });
  });
});
