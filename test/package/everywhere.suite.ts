import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { workerRedis } from '../support/redis.js';
import { packPackage, PackedApp, run } from './packed-apps.js';

/** To install hundreds of MB, or for webpack on a busy machine. */
const PATIENCE_MS = 300_000;

/** README.md names them. They are binaries out of npm, of the versions in apps/runtimes. */
const RUNTIMES: Readonly<Record<string, readonly string[]>> = {
  'Node 20': ['node20/bin/node'],
  'Node 22': ['node22/bin/node'],
  'Node 24': ['node24/bin/node'],
  'Node 26': ['node26/bin/node'],
  Bun: ['@oven/bun-linux-x64/bin/bun', 'run'],
  Deno: ['@deno/linux-x64-glibc/deno', 'run', '--allow-all', '--node-modules-dir=manual'],
};

describe('an app with the packed package does what apps/checks.ts expects, in memory and on Redis', () => {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-everywhere-'));
  const app = new PackedApp('bundlers', folder, ['checks.ts']);

  beforeAll(async () => {
    if (process.platform !== 'linux' || process.arch !== 'x64')
      throw new Error('The binaries that test/package/apps pins are for Linux on x64. Run this suite there.');
    const [tarball] = await Promise.all([packPackage(folder), app.installDependencies()]);
    await app.install(tarball);
    await app.compileToBoth();
  }, PATIENCE_MS);
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  const onBoth = async (...program: string[]): Promise<unknown[]> => {
    const { url } = workerRedis();
    return (await Promise.all([app.runChecks(program), app.runChecks(program, url)])).flat();
  };

  // A build may rename every class and every function, put all files into one, and leave out what nobody uses.
  it.each(['webpack', 'rspack', 'esbuild', 'rollup', 'bun'])(
    'bundled and minified by %s',
    async (bundler) => {
      mkdirSync(app.file('bundles'), { recursive: true });
      const bundle = app.file(`bundles/${bundler}.cjs`);
      await run(process.execPath, ['bundle.mjs', bundler, 'out/esm/checks.js', bundle], app.file('.'));
      const code = readFileSync(bundle, 'utf8');
      expect(code).toContain('syncguard:error-brands');
      expect(code).not.toMatch(/class (LockService|LockError|SyncGuardError)\b/);
      expect(await onBoth(process.execPath, bundle)).toEqual([]);
    },
    PATIENCE_MS,
  );

  describe('as it is', () => {
    const runtimes = new PackedApp('runtimes', folder, []);
    beforeAll(() => runtimes.installDependencies(), PATIENCE_MS);

    it.each(Object.keys(RUNTIMES))(
      'on %s, in both formats',
      async (name) => {
        const [binary, ...args] = RUNTIMES[name] as [string, ...string[]];
        const program = (format: string): string[] => [
          ...[runtimes.file(`node_modules/${binary}`), ...args],
          `out/${format}/checks.js`,
        ];
        expect(await onBoth(...program('esm'))).toEqual([]);
        expect(await onBoth(...program('cjs'))).toEqual([]);
      },
      PATIENCE_MS,
    );
  });
});
