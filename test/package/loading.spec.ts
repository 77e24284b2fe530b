import { join, relative } from 'node:path';
import { run } from './packed-apps.js';

const ROOT = join(__dirname, '../..');

/** Runs a program on lib/ in a process of its own. Returns the files that were loaded: of lib/, of ioredis and of OpenTelemetry. */
async function loadedBy(program: string): Promise<string[]> {
  const listing = `console.log(JSON.stringify(Object.keys(require.cache)))`;
  const args = ['-r', './test/support/run-ts.cjs', '-e', `(async () => { ${program}; ${listing}; })()`];
  const files = JSON.parse(await run(process.execPath, args, ROOT)) as string[];
  return files
    .map((file) => relative(ROOT, file))
    .filter((file) => /^(lib|node_modules[/](ioredis|@opentelemetry))[/]/.test(file));
}

const REDIS = /node_modules.ioredis|(budget|counter|limit|secret)[.]redis-backend|redis-connection/;

describe('what is loaded', () => {
  it('when the package is imported: no ioredis, no script of a budget', async () => {
    const files = await loadedBy(`require('./lib/index.ts')`);
    expect(files).toContain('lib/lock/lock.service.ts');
    expect(files.filter((file) => /opentelemetry/.test(file))).toEqual([]);
    expect(files.filter((file) => REDIS.test(file) || /budget.*scripts?[.]ts$/.test(file))).toEqual([]);
  });

  it('when an app in memory has started: no ioredis, and no backend on Redis', async () => {
    const files = await loadedBy(`
      require('reflect-metadata');
      const { SyncGuardModule } = require('./lib/index.ts');
      const { NestFactory } = require('@nestjs/core');
      const app = await NestFactory.createApplicationContext(SyncGuardModule.forRoot(), { logger: false });
      await app.close()`);
    expect(files).toContain('lib/budget/memory/budget.memory-backend.ts');
    expect(files.filter((file) => REDIS.test(file))).toEqual([]);
  });
});
