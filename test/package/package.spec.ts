import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { freshRedis, workerRedis } from '../support/redis.js';
import { filesOf, packPackage, PackedApp, run } from './packed-apps.js';

const SET_UP_MS = 300_000;

describe('the package, as it is published', () => {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-package-'));
  const nest10 = new PackedApp('nest10-cjs', folder, ['main.ts', 'checks.ts']);
  const nest11 = new PackedApp('nest11-cjs', folder);
  const nest12 = new PackedApp('nest12-esm', folder);
  const apps = [nest10, nest11, nest12];
  const withoutNest = new PackedApp('without-nest', folder);
  const all = [...apps, withoutNest];
  let tarball: string;

  beforeAll(async () => {
    await freshRedis();
    [tarball] = await Promise.all([packPackage(folder), ...all.map((app) => app.installDependencies())]);
    await Promise.all(all.map((app) => app.install(tarball)));
  }, SET_UP_MS);

  afterAll(async () => {
    await Promise.all(apps.map((app) => app.stop()));
    rmSync(folder, { recursive: true, force: true });
  });

  it('holds the build and the guides, and nothing of the sources or tests', async () => {
    const files = await filesOf(tarball);
    const expected =
      /^package\/(dist\/(cjs|esm)\/.+\.(js|js\.map|d\.ts)|docs\/((guides\/)?[\w-]+\.md|assets\/[\w-]+\.(svg|json)))$/;
    expect(files.filter((file) => !expected.test(file)).sort()).toEqual([
      'package/CHANGELOG.md',
      'package/LICENSE',
      'package/README.md',
      'package/dist/cjs/package.json',
      'package/dist/esm/package.json',
      'package/package.json',
    ]);
    expect(files).toEqual(
      expect.arrayContaining([
        'package/dist/cjs/index.d.ts',
        'package/dist/cjs/testing/index.d.ts',
        'package/dist/esm/index.js',
        'package/dist/esm/testing/index.js',
        'package/docs/locks.md',
        'package/docs/testing.md',
      ]),
    );
  });

  it('is installed beside Nest 10 with ioredis 5.3, Nest 11 with ioredis 5, and Nest 12 with ioredis 6', () => {
    expect([nest10.versionOf('@nestjs/core'), nest10.versionOf('ioredis')]).toEqual([
      expect.stringMatching(/^10\./),
      expect.stringMatching(/^5\.3\./),
    ]);
    expect([nest11.versionOf('@nestjs/core'), nest11.versionOf('ioredis')]).toEqual([
      expect.stringMatching(/^11\./),
      expect.stringMatching(/^5\./),
    ]);
    expect([nest12.versionOf('@nestjs/core'), nest12.versionOf('ioredis')]).toEqual([
      expect.stringMatching(/^12\./),
      expect.stringMatching(/^6\./),
    ]);
  });

  it('takes at most 4.4 MB of the disk', () => {
    for (const app of all) expect(app.bytesOf('nestjs-syncguard')).toBeLessThan(4_400_000);
  });

  it('has no package beside it that it could do without', () => {
    for (const app of apps) {
      expect(app.has('nestjs-syncguard')).toBe(true);
      for (const optional of ['graphql', 'websockets', 'microservices', 'testing'])
        expect([optional, app.has(`@nestjs/${optional}`)]).toEqual([optional, false]);
    }
  });

  it(
    'has types that compile in CommonJS and in ES modules, without any optional package',
    async () => {
      await Promise.all(all.map((app) => app.compile()));
    },
    SET_UP_MS,
  );

  it('locks without Nest, by its entries ./core and ./compat', async () => {
    for (const absent of ['@nestjs/common', '@nestjs/core', 'rxjs', 'reflect-metadata'])
      expect([absent, withoutNest.has(absent)]).toEqual([absent, false]);
    const tried = [expect.stringMatching(/^\d{15}$/), true, true];
    expect(await withoutNest.runToEnd(workerRedis().url)).toEqual({
      memory: tried,
      redis: tried,
      events: ['acquire', 'acquire', 'acquire', 'lookup', 'release'],
      count: 1,
      error: 'InvalidArgument',
      scripts: true,
      oneCopy: true,
    });
  });

  it(
    'boots in all apps, as one copy whether it is required or imported',
    async () => {
      const copies = await Promise.all(apps.map((app) => app.start(workerRedis().url)));
      expect(copies).toEqual([1, 1, 1]);
    },
    SET_UP_MS,
  );

  it.each([
    ['Nest 10', nest10, nest12],
    ['Nest 11', nest11, nest12],
    ['Nest 12', nest12, nest11],
  ])('takes a lock in %s, which excludes the other app until it is released', async (_, one, other) => {
    const taken = await one.post('take');
    expect(taken.body).toEqual({ ok: true, fence: expect.stringMatching(/^\d{15}$/) as string });
    expect((await other.post('take')).body).toEqual({ ok: false });
    expect(await other.post('pay')).toMatchObject({ status: 423, body: { code: 'AcquisitionTimeout' } });

    expect((await one.post('release')).body).toEqual({ ok: true });
    const paid = await other.post('pay');
    expect(paid.status).toBe(201);
    expect(String(paid.body.fence) > String(taken.body.fence)).toBe(true);
  });

  it('limits calls and spending in all apps, which count together', async () => {
    const statuses = async (path: string): Promise<number[]> => {
      const answers: number[] = [];
      for (const app of [nest10, nest11, nest12, nest10]) answers.push((await app.post(path)).status);
      return answers;
    };
    expect(await statuses('log-in')).toEqual([201, 201, 429, 429]);
    expect(await statuses('ask')).toEqual([201, 201, 429, 429]);
    expect((await nest12.post('ask')).body).toMatchObject({ code: 'BudgetExceeded' });
  });

  it('does on Nest 10 with ioredis 5.3 what apps/checks.ts expects', async () => {
    const program = [process.execPath, 'checks.js'];
    expect(await nest10.runChecks(program)).toEqual([]);
    expect(await nest10.runChecks(program, workerRedis().url)).toEqual([]);
  });

  it('says where an error is from, by the file of lib/ and its line', async () => {
    const program = `require('nestjs-syncguard').SyncGuardModule.forRoot({ keyPrefix: '' })`;
    const args = [
      '--enable-source-maps',
      '-e',
      `try { ${program} } catch (error) { console.log(error.stack) }`,
    ];
    const stack = await run(process.execPath, args, nest12.file('.'));
    const at = stack.match(/lib\/(redis\/redis\.keys\.ts):(\d+)/);
    const lines = readFileSync(join(__dirname, '../../lib', at?.[1] ?? ''), 'utf8').split('\n');
    expect(lines[Number(at?.[2]) - 1]).toContain('throw new SyncGuardConfigError(`keyPrefix');
    expect(stack).toMatch(/SyncGuardConfigError: keyPrefix must[^]*at validateKeyPrefix[^]*forRoot/);
  });

  it('loads three files of its own, and no ioredis before an app has a Redis', async () => {
    const entry = nest12.file('node_modules/nestjs-syncguard/dist/cjs/index.js');
    const program = `require('${entry}'); console.log(Object.keys(require.cache).join('\\n'))`;
    const loaded = (await run(process.execPath, ['-e', program], nest12.file('.'))).split('\n');
    const ours = loaded.filter((file) => file.includes('/nestjs-syncguard/')).map((file) => basename(file));
    expect(ours).toEqual(['index.js', 'syncguard.core.js', 'syncguard.nest.js']);
    expect(loaded.filter((file) => file.includes('/ioredis/'))).toEqual([]);
  });

  it('releases what is held when its app is told to end', async () => {
    for (const app of apps) {
      expect((await app.post('take')).body.ok).toBe(true);
      expect(await app.stop()).toBe('SIGTERM');
    }
  });
});
