import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { buildWorker } from './workers/build-worker.js';

const PROCESSES = 4;
const WORKERS = 4;
const SECTIONS = 15;

interface Section {
  readonly pid: number;
  readonly name: number;
  readonly fence: string;
  readonly inside: number;
}

describe('workers in several processes', () => {
  let folder: string;
  let program: string;
  beforeAll(async () => {
    ({ folder, program } = await buildWorker('lock-worker'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeEach(freshRedis);

  const start = (): ChildProcess =>
    spawn(process.execPath, [program, workerRedis().url, String(WORKERS), String(SECTIONS)], {
      stdio: 'inherit',
    });
  const history = async (): Promise<Section[]> =>
    (await workerRedis().client().lrange('history', 0, -1)).map((entry) => JSON.parse(entry) as Section);

  it('are never two inside, fences only rise, and each gets its turns', async () => {
    const children = Array.from({ length: PROCESSES }, start);
    const codes = await Promise.all(children.map(async (child) => (await once(child, 'exit'))[0] as number));
    expect(codes).toStrictEqual(Array(PROCESSES).fill(0));

    const sections = await history();
    expect(sections).toHaveLength(PROCESSES * WORKERS * SECTIONS);
    expect(sections.filter(({ inside }) => inside !== 1)).toStrictEqual([]);
    const fences = sections.map(({ fence }) => fence);
    expect(fences).toStrictEqual([...new Set(fences)].sort());
    const turns = new Map<string, number>();
    for (const { pid, name } of sections) turns.set(`${pid}:${name}`, (turns.get(`${pid}:${name}`) ?? 0) + 1);
    expect([...turns.values()]).toStrictEqual(Array(PROCESSES * WORKERS).fill(SECTIONS));
  });

  it('go on after the holder was killed, as soon as its TTL has passed', async () => {
    const victim = start();
    const client = workerRedis().client();
    await eventually(async () => expect(await client.exists('syncguard:shared')).toBe(1));
    victim.kill('SIGKILL');
    await once(victim, 'exit');
    await client.set('inside', 0);
    const before = (await history()).length;

    const survivor = start();
    expect((await once(survivor, 'exit'))[0]).toBe(0);
    const sections = (await history()).slice(before);
    expect(sections).toHaveLength(WORKERS * SECTIONS);
    expect(sections.filter(({ inside }) => inside !== 1)).toStrictEqual([]);
  });
});
