import { build, type Format } from 'esbuild';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { freshRedis, workerRedis } from '../support/redis.js';
import { run, stagePackage } from './packed-apps.js';

const ROOT = resolve(__dirname, '../..');
const SET_UP_MS = 300_000;

/** What Nest imports only where it is needed, and the sample does not. */
const OPTIONAL = [
  '@nestjs/graphql',
  '@nestjs/microservices',
  '@nestjs/websockets',
  '@fastify/multipart',
  '@fastify/static',
  '@fastify/view',
  'class-transformer',
  'class-validator',
];

const SECRETS_KEY = Buffer.alloc(32, 7).toString('base64');

interface Answer {
  status: number;
  body: Record<string, unknown>;
  retryAfter: string | null;
}

describe('the sample app, bundled and minified', () => {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-bundle-'));
  const stage = join(folder, 'build/node_modules/nestjs-syncguard');
  /** Where nothing is installed. */
  const target = join(folder, 'app');
  const programs: ChildProcess[] = [];

  beforeAll(async () => {
    await stagePackage(stage);
    // Its Nest is this repository's.
    symlinkSync(join(ROOT, 'node_modules'), join(stage, 'node_modules'));
    mkdirSync(target);
    await Promise.all((['cjs', 'esm'] as const).map(bundle));
  }, SET_UP_MS);
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  afterEach(async () => {
    for (const program of programs.splice(0)) {
      if (program.exitCode !== null || program.signalCode !== null) continue;
      const exit = once(program, 'exit');
      program.kill('SIGKILL');
      await exit;
    }
  });

  const programOf = (format: Format): string => join(target, `main.${format === 'cjs' ? 'cjs' : 'mjs'}`);

  /** tsc first, as `npm start` does: esbuild knows no decorator metadata. Then all of it into one file. */
  async function bundle(format: 'cjs' | 'esm'): Promise<void> {
    const compiled = join(folder, 'build', format);
    const tsconfig = join(folder, `tsconfig.${format}.json`);
    const module = format === 'cjs' ? {} : { module: 'es2022', moduleResolution: 'bundler' };
    writeFileSync(
      tsconfig,
      JSON.stringify({
        extends: join(ROOT, 'sample/tsconfig.json'),
        compilerOptions: {
          ...module,
          rootDir: join(ROOT, 'sample'),
          outDir: compiled,
          typeRoots: [join(ROOT, 'node_modules/@types')],
          paths: { 'nestjs-syncguard': [join(stage, 'dist/esm/index.d.ts')] },
        },
        include: [join(ROOT, 'sample')],
        exclude: [join(ROOT, 'sample/dist')],
      }),
    );
    const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
    await run(process.execPath, [tsc, '-p', tsconfig, '--noCheck'], ROOT);
    const { metafile } = await build({
      entryPoints: [join(compiled, 'all/main.js')],
      outfile: programOf(format),
      bundle: true,
      minify: true,
      platform: 'node',
      target: 'node20',
      format,
      external: OPTIONAL.flatMap((name) => [name, `${name}/*`]),
      nodePaths: [join(ROOT, 'node_modules')],
      // CommonJS in an ES module asks for `require`.
      ...(format === 'esm' && {
        banner: {
          js: `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`,
        },
      }),
      metafile: true,
      logLevel: 'error',
    });
    const ours = Object.keys(metafile.inputs).filter((file) => file.includes('nestjs-syncguard/dist/'));
    const others = ours.filter((file) => !file.includes(`nestjs-syncguard/dist/${format}/`));
    expect([ours.length > 0, others]).toStrictEqual([true, []]);
  }

  /** Gives the address that the app says it is at. */
  async function start(format: Format, env: Record<string, string>): Promise<string> {
    const program = spawn(process.execPath, [programOf(format)], {
      cwd: target,
      env: { PATH: process.env.PATH, PORT: String(await freePort()), SECRETS_KEY, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    programs.push(program);
    let errors = '';
    program.stderr.on('data', (chunk: Buffer) => (errors += chunk.toString()));
    const [line] = (await Promise.race([
      once(createInterface(program.stdout), 'line'),
      once(program, 'exit').then(() => Promise.reject(new Error(`It ended: ${errors}`))),
    ])) as [string];
    return /http:\S+:\d+/.exec(line)?.[0] ?? line;
  }

  async function post(url: string, body: object = {}): Promise<Answer> {
    const headers = { 'Content-Type': 'application/json' };
    const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
    const { status } = response;
    const retryAfter = response.headers.get('retry-after');
    return { status, body: (await response.json()) as Record<string, unknown>, retryAfter };
  }

  it('has none of the names of its classes', () => {
    for (const format of ['cjs', 'esm'] as const) {
      const code = readFileSync(programOf(format), 'utf8');
      expect(code).toContain('syncguard:');
      for (const name of ['LockService', 'RateLimitGuard', 'OrdersController', 'SecretsService'])
        expect(code).not.toMatch(new RegExp(`class ${name}\\b`));
    }
  });

  describe.each([
    { format: 'cjs', backend: 'memory', adapter: 'express' },
    { format: 'cjs', backend: 'Redis', adapter: 'fastify' },
    { format: 'esm', backend: 'memory', adapter: 'fastify' },
    { format: 'esm', backend: 'Redis', adapter: 'express' },
  ] as const)('as $format, on $backend with $adapter', ({ format, backend, adapter }) => {
    it('locks, limits, budgets and keeps secrets as ever', async () => {
      await freshRedis();
      const REDIS_URL = backend === 'Redis' ? workerRedis().url : '';
      const url = await start(format, { ADAPTER: adapter, REDIS_URL });

      const paid = await Promise.all([post(`${url}/orders/7/pay`), post(`${url}/orders/7/pay`)]);
      expect(paid.map(({ status, body }) => [status, body.charged]).sort()).toStrictEqual([
        [200, false],
        [201, true],
      ]);

      const logins: Answer[] = [];
      for (let i = 0; i < 5; i++)
        logins.push(await post(`${url}/login`, { email: 'ann@example.org', password: 'guess' }));
      expect(logins.map(({ status }) => status)).toStrictEqual([401, 401, 401, 401, 429]);
      expect(logins[4]).toMatchObject({ retryAfter: '60', body: { code: 'TooManyAttempts' } });

      const ask = (maxTokens: number): Promise<Answer> =>
        post(`${url}/ai/complete`, { user: 'ada', prompt: 'Four tokens long', maxTokens });
      expect(await ask(800)).toMatchObject({ status: 200, body: { usage: { total: 484 } } });
      expect(await ask(4_000)).toMatchObject({ status: 402, body: { code: 'BudgetExceeded' } });

      const { status, body } = await post(`${url}/secrets`, { text: 'The door code is 4711', views: 1 });
      expect(status).toBe(201);
      const reveal = (): Promise<Answer> => post(`${url}/secrets/${String(body.id)}/reveal`);
      expect(await reveal()).toMatchObject({ status: 200, body: { text: 'The door code is 4711' } });
      expect((await reveal()).status).toBe(410);

      const health = await fetch(`${url}/health`);
      expect(await health.json()).toMatchObject({
        details: { syncguard: { status: 'up', backend: backend.toLowerCase() } },
      });
    });
  });
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
