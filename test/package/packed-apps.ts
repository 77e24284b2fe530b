import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';

const ROOT = resolve(__dirname, '../..');
const APPS = join(__dirname, 'apps');
const PUBLISHED = ['package.json', 'README.md', 'LICENSE', 'CHANGELOG.md', 'docs'];
const TSC = join(ROOT, 'node_modules/typescript/bin/tsc');
const BLOCK_BYTES = 4_096;
/** That apps/checks.ts makes. */
const CHECKS = 40;
/** For an app to end by itself. */
const PATIENCE_MS = 5_000;
const NPM_FLAGS = [
  ...['--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline'],
  '--fetch-retry-mintimeout=1000', // not 10 s: where there is no network, the test says so soon
];

/** The package as it is published, built into a folder of its own: dist/ may be in use. */
async function stagePackage(stage: string): Promise<void> {
  mkdirSync(stage, { recursive: true });
  for (const file of PUBLISHED) cpSync(join(ROOT, file), join(stage, file), { recursive: true });
  await run(process.execPath, [join(ROOT, 'tools/build.mjs'), join(stage, 'dist')], ROOT);
}

/** Builds and packs as a release does. Gives the tarball. */
export async function packPackage(folder: string): Promise<string> {
  const stage = join(folder, 'stage');
  await stagePackage(stage);
  const tarball = await run('npm', ['pack', '--silent', '--ignore-scripts'], stage);
  return join(stage, tarball.trim());
}

export const filesOf = async (tarball: string): Promise<string[]> =>
  (await run('tar', ['-tzf', tarball], ROOT)).trim().split('\n');

/** An app like a user's, outside of this repository, with the packed package installed. */
export class PackedApp {
  readonly #folder: string;
  #process: ChildProcess | undefined;
  #url = '';

  /** @param programs - of those that apps share. A program of the same name in the folder of the app takes its place. */
  constructor(
    readonly name: string,
    folder: string,
    programs: readonly ('main.ts' | 'checks.ts')[] = ['main.ts'],
  ) {
    this.#folder = join(folder, name);
    mkdirSync(this.#folder, { recursive: true });
    for (const file of [...programs, 'tsconfig.json']) cpSync(join(APPS, file), join(this.#folder, file));
    cpSync(join(APPS, name), this.#folder, { recursive: true });
  }

  /** The path of a file of the app. */
  file(name: string): string {
    return join(this.#folder, name);
  }

  /** What its lockfile pins. */
  async installDependencies(): Promise<void> {
    await this.#npm('ci');
  }

  async install(tarball: string): Promise<void> {
    await this.#npm('install', '--no-save', tarball);
  }

  async #npm(...args: string[]): Promise<void> {
    try {
      await run('npm', [...args, ...NPM_FLAGS], this.#folder);
    } catch (cause) {
      const message = `This test installs a user's app (${this.name}), for which it needs the npm registry.`;
      throw new Error(`${message}\n${String(cause)}`, { cause });
    }
  }

  has(dependency: string): boolean {
    return existsSync(join(this.#folder, 'node_modules', dependency));
  }

  /** What a package takes of the disk, each file in whole blocks. */
  bytesOf(dependency: string): number {
    const folder = join(this.#folder, 'node_modules', dependency);
    return readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .map((file) => lstatSync(join(folder, file)))
      .reduce((sum, { size }) => sum + Math.ceil(size / BLOCK_BYTES) * BLOCK_BYTES, 0);
  }

  versionOf(dependency: string): string {
    const manifest = readFileSync(join(this.#folder, 'node_modules', dependency, 'package.json'), 'utf8');
    return (JSON.parse(manifest) as { version: string }).version;
  }

  /** Type-checks against the published types, those of all dependencies included, and compiles. */
  async compile(): Promise<void> {
    await run(process.execPath, [TSC, '-p', '.'], this.#folder);
  }

  /** Compiles to out/esm and out/cjs. Types are checked once. */
  async compileToBoth(): Promise<void> {
    const formats = { esm: [], cjs: ['--module', 'commonjs', '--moduleResolution', 'bundler', '--noCheck'] };
    const compiling = Object.entries(formats).map(async ([format, flags]) => {
      const outDir = join(this.#folder, 'out', format);
      await run(process.execPath, [TSC, '-p', '.', '--outDir', outDir, ...flags], this.#folder);
      const type = format === 'cjs' ? 'commonjs' : 'module';
      writeFileSync(join(outDir, 'package.json'), JSON.stringify({ type }));
    });
    await Promise.all(compiling);
  }

  /**
   * Runs apps/checks.ts, which ends by itself. Without a URL it runs in memory.
   *
   * @param program - a runtime with its arguments, and the file
   * @returns what does not hold: an empty array
   */
  async runChecks(program: readonly string[], redisUrl?: string): Promise<unknown[]> {
    const [runtime, ...args] = program as [string, ...string[]];
    const env = { REDIS_URL: redisUrl ?? '', NODE_OPTIONS: '' };
    const printed = await run(runtime, args, this.#folder, env, { failureToo: true });
    const checks = printed
      .split('\n')
      .filter((line) => line.startsWith('{"name"'))
      .map((line) => JSON.parse(line) as { holds: boolean });
    const others = printed.split('\n').filter((line) => line && !line.startsWith('{"name"'));
    const missing = checks.length < CHECKS ? [`${checks.length} of ${CHECKS} checks ran`] : [];
    return [...missing, ...others, ...checks.filter(({ holds }) => !holds)];
  }

  /** Runs a program that ends by itself. Gives what it printed, read as JSON. */
  async runToEnd(redisUrl: string): Promise<unknown> {
    return JSON.parse(await run(process.execPath, ['main.js'], this.#folder, { REDIS_URL: redisUrl }));
  }

  /** Starts the app. Gives how many copies of the package it has loaded by `require` and `import`. */
  async start(redisUrl: string): Promise<number> {
    const app = spawn(process.execPath, ['main.js'], {
      cwd: this.#folder,
      env: { ...process.env, NODE_OPTIONS: '', REDIS_URL: redisUrl },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#process = app;
    const errors: Buffer[] = [];
    app.stderr.on('data', (chunk: Buffer) => errors.push(chunk));
    const [line] = (await Promise.race([
      once(createInterface(app.stdout), 'line'),
      once(app, 'exit').then(([code]) => {
        throw new Error(`The app ${this.name} ended with ${code}:\n${Buffer.concat(errors).toString()}`);
      }),
    ])) as [string];
    const { url, copies } = JSON.parse(line) as { url: string; copies: number };
    this.#url = url;
    return copies;
  }

  async post(path: string): Promise<{ status: number; body: Record<string, unknown> }> {
    const response = await fetch(`${this.#url}/${path}`, { method: 'POST' });
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  }

  /** Asks the app to end as a deployment does; gives the signal that ended it, SIGKILL when it did not by itself. */
  async stop(): Promise<NodeJS.Signals | null | undefined> {
    const app = this.#process;
    if (!app || app.exitCode !== null || app.signalCode !== null) return app?.signalCode;
    const exit = once(app, 'exit');
    app.kill('SIGTERM');
    const killer = setTimeout(() => app.kill('SIGKILL'), PATIENCE_MS);
    await exit;
    clearTimeout(killer);
    return app.signalCode;
  }
}

/** What a program printed. Rejects with all of it when the program failed, unless `failureToo` asks for it then too. */
export async function run(
  program: string,
  args: string[],
  cwd: string,
  env: Readonly<Record<string, string>> = {},
  { failureToo = false } = {},
): Promise<string> {
  try {
    const { stdout } = await promisify(execFile)(program, args, { cwd, env: { ...process.env, ...env } });
    return stdout;
  } catch (cause) {
    const { stdout = '', stderr = '', message } = cause as Error & { stdout?: string; stderr?: string };
    if (failureToo) return `${stdout}${stderr}`;
    throw new Error(`${message}\n${stdout}${stderr}`, { cause });
  }
}
