import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { freshRedis, workerRedis } from '../support/redis.js';
import { buildWorker } from '../fault/workers/build-worker.js';

const CALLS = 5;
const TIMEOUT_MS = 1_500;

describe('three processes whose calls nest their locks in a circle', () => {
  let folder: string;
  let program: string;
  beforeAll(async () => {
    ({ folder, program } = await buildWorker('nested-worker'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeEach(freshRedis);

  const start = (outer: string, inner: string): ChildProcess =>
    spawn(process.execPath, [program, workerRedis().url, outer, inner, String(CALLS), String(TIMEOUT_MS)], {
      stdio: 'inherit',
    });

  it('are all done: in each circle one gives up within its time, and the queue goes on', async () => {
    const children = [start('a', 'b'), start('b', 'c'), start('c', 'a')];
    const codes = await Promise.all(children.map(async (child) => (await once(child, 'exit'))[0] as number));
    expect(codes).toEqual([0, 0, 0]);
    const client = workerRedis().client();
    const history = (await client.lrange('history', 0, -1)).map(
      (each) => JSON.parse(each) as { atMs: number },
    );
    expect(history).toHaveLength(3 * CALLS);
    const refused = await client.lrange('refused', 0, -1);
    expect(refused.length).toBeGreaterThan(0);
    expect(refused.filter((code) => code !== 'AcquisitionTimeout')).toEqual([]);
    // A circle lasts for `timeoutMs` at most. Two sides may give up in the same ms, and then there is another circle.
    const gaps = history.map(({ atMs }, i) => atMs - (history[i - 1]?.atMs ?? atMs));
    expect(Math.max(...gaps)).toBeLessThan(2 * TIMEOUT_MS + 1_000);
    expect((await client.keys('syncguard*')).filter((key) => !key.includes('fence:'))).toEqual([]);
  });
});
