import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { Pool } from 'pg';
import { eventually } from './eventually.js';

/** Debian keeps the server's programs out of the PATH, in a folder for each version. */
const DEBIAN = '/usr/lib/postgresql';
const START_TIMEOUT_MS = 30_000;

/** Returns the folder that has `initdb` and `postgres`; undefined where PostgreSQL is not installed. */
export function postgresPrograms(path = process.env.PATH ?? ''): string | undefined {
  const versions = existsSync(DEBIAN) ? readdirSync(DEBIAN).sort((a, b) => Number(b) - Number(a)) : [];
  const folders = [...path.split(delimiter), ...versions.map((version) => join(DEBIAN, version, 'bin'))];
  return folders.find((folder) =>
    ['initdb', 'postgres'].every((program) => existsSync(join(folder, program))),
  );
}

/** PostgreSQL refuses to run as root: there its package's own user runs it. */
function runner(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {};
  const idOf = (option: string): number =>
    Number(execFileSync('id', [option, 'postgres'], { encoding: 'utf8' }));
  return { uid: idOf('-u'), gid: idOf('-g') };
}

/** A PostgreSQL of the test's own in a temporary folder, reached by a Unix socket. It writes nothing through to the disk. */
export class PostgresServer {
  private readonly pools = new Set<Pool>();

  /** @internal Use startPostgres(). */
  constructor(
    readonly folder: string,
    private readonly child: ChildProcess,
  ) {}

  /** What `new Pool(...)` of the package `pg` takes. */
  get connection(): { host: string; user: string; database: string } {
    return { host: this.folder, user: 'postgres', database: 'postgres' };
  }

  /** A pool that is closed with the server. */
  pool(): Pool {
    // A pool that was ended may still have clients that are on their way out, which the server's end disconnects.
    const pool = new Pool(this.connection).on('error', () => {});
    this.pools.add(pool);
    return pool;
  }

  async stop(): Promise<void> {
    await Promise.all([...this.pools].map((pool) => pool.end()));
    if (!hasEnded(this.child)) {
      const exit = once(this.child, 'exit');
      this.child.ref();
      this.child.kill('SIGINT'); // "fast": clients are disconnected
      await exit;
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

const hasEnded = (child: ChildProcess): boolean => child.exitCode !== null || child.signalCode !== null;

/**
 * Starts a PostgreSQL and waits until it answers. `stop()` it, or let `await using` do so.
 *
 * @example await using postgres = await startPostgres();
 */
export async function startPostgres(): Promise<PostgresServer> {
  const programs = postgresPrograms();
  if (!programs) throw new Error('PostgreSQL is not installed: run the tests by `npx jest`, which says how.');
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-postgres-'));
  const as = runner();
  if (as.uid !== undefined) chownSync(folder, as.uid, as.gid as number);
  chmodSync(folder, 0o700);
  const data = join(folder, 'data');
  const options = ['-U', 'postgres', '--auth=trust', '--no-sync', '--no-locale', '-E', 'UTF8'];
  const made = spawnSync(join(programs, 'initdb'), ['-D', data, ...options], {
    ...as,
    cwd: folder,
    encoding: 'utf8',
  });
  if (made.status !== 0)
    throw new Error(`initdb failed:\n${made.stdout}${made.stderr}${String(made.error ?? '')}`);

  const settings = ['fsync=off', 'synchronous_commit=off', 'full_page_writes=off', 'listen_addresses='];
  const args = ['-D', data, '-k', folder, ...settings.flatMap((setting) => ['-c', setting])];
  const logFile = join(folder, 'server.log');
  const log = openSync(logFile, 'w');
  // A jest that is killed leaves no server behind.
  const child = spawn('setpriv', ['--pdeathsig', 'INT', join(programs, 'postgres'), ...args], {
    ...as,
    cwd: folder,
    stdio: ['ignore', log, log],
  });
  closeSync(log);
  child.unref();
  if (child.pid === undefined) throw (await once(child, 'error'))[0];
  const server = new PostgresServer(folder, child);
  try {
    const pool = server.pool();
    await eventually(() => pool.query('SELECT 1'), { timeoutMs: START_TIMEOUT_MS, intervalMs: 50 });
  } catch (error) {
    const tail = readFileSync(logFile, 'utf8').slice(-2_000);
    await server.stop();
    throw new Error(`PostgreSQL did not start:\n${tail}`, { cause: error });
  }
  return server;
}
