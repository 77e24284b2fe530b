import { spawn, type ChildProcess } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis, type RedisOptions } from 'ioredis';
import { eventually } from './eventually.js';
import { clockEnvironment, ServerClock } from './server-clock.js';

export interface RedisServerOptions {
  /** More arguments, as on the command line: `['--maxmemory', '2mb']`. */
  args?: readonly string[];
  /** What to write into a configuration file of its own: a Sentinel insists on one. */
  config?: string;
  password?: string;
  /** A Cluster of this one node, which owns all slots. */
  cluster?: boolean;
  /** Which program, with the arguments that it needs before all others; the redis-server of the machine. */
  command?: readonly string[];
  /** A clock that it shares with others: those of a Cluster move together. Its own, if none is given. */
  clock?: ServerClock;
  env?: NodeJS.ProcessEnv;
}

interface Disconnectable {
  disconnect(): void;
}

/** ioredis waits so long for the end of a connection, even of one that has ended, and jest with it: 2 s unless told so. */
export const DISCONNECT_TIMEOUT_MS = 100;
const START_TIMEOUT_MS = 10_000;
const START_ATTEMPTS = 5;
const SLOTS = 16_384;
/** A Cluster node that just started counts as down for 2 s of its own clock. */
const CLUSTER_START_MS = 3000;

/** Below the ports that outgoing connections are given, and so is the Cluster's bus port, which is 10000 higher. */
const randomPort = (): number => randomInt(10_000, 22_000);

/** A running redis-server, whichever process started it: its address, its clock and clients of it. */
export class RedisEndpoint {
  readonly host = '127.0.0.1';
  private readonly clients = new Set<Disconnectable>();

  constructor(
    readonly port: number,
    readonly clock: ServerClock,
    protected serverPid: number,
    private readonly password?: string,
  ) {}

  get pid(): number {
    return this.serverPid;
  }

  get url(): string {
    return `redis://${this.password ? `:${this.password}@` : ''}${this.host}:${this.port}`;
  }

  /** A client that is closed with the server. Connection errors are kept quiet: tests cause them on purpose. */
  client(options: RedisOptions = {}): Redis {
    const { host, port, password } = this;
    const client = new Redis({ host, port, password, disconnectTimeout: DISCONNECT_TIMEOUT_MS, ...options });
    return this.track(client.on('error', () => {}));
  }

  /** The same of a Cluster that is known by this node. */
  cluster(options: RedisOptions = {}): Cluster {
    const redisOptions = { disconnectTimeout: DISCONNECT_TIMEOUT_MS, ...options };
    return this.track(new Cluster([{ host: this.host, port: this.port }], { redisOptions }));
  }

  /** Closes another client along with those: one of ioredis 5, or with options of a test's own. */
  track<T extends Disconnectable>(client: T): T {
    this.clients.add(client);
    return client;
  }

  /** Closes one client before the others. */
  release(client: Disconnectable): void {
    client.disconnect();
    this.clients.delete(client);
  }

  closeClients(): void {
    for (const client of this.clients) client.disconnect();
    this.clients.clear();
  }

  /** The server stands still, and its connections stay open. */
  pause(): void {
    process.kill(this.pid, 'SIGSTOP');
  }

  resume(): void {
    process.kill(this.pid, 'SIGCONT');
  }
}

/** A redis-server of the test's own, on a free loopback port, that writes nothing down. */
export class RedisServer extends RedisEndpoint {
  private child: ChildProcess | undefined;

  /** @internal Use startRedisServer(). */
  constructor(
    port: number,
    private readonly folder: string,
    private readonly options: RedisServerOptions,
  ) {
    super(port, options.clock ?? ServerClock.create(join(folder, 'clock')), 0, options.password);
    if (options.config !== undefined) writeFileSync(join(folder, 'redis.conf'), options.config);
  }

  /** @internal */
  async start(): Promise<void> {
    const child = this.spawn();
    this.child = child;
    // Without a pid there is no such program: the event says so, and must not go unheard.
    if (child.pid === undefined) throw (await once(child, 'error'))[0];
    this.serverPid = child.pid;
    await this.untilReady(child);
    if (this.options.cluster) await this.untilClusterIsUp();
  }

  /** SIGKILL, as when the machine is lost. The port stays its own for `restart()`. */
  async kill(): Promise<void> {
    const child = this.child;
    if (!child?.pid || hasEnded(child)) return;
    const exit = once(child, 'exit');
    child.ref();
    child.kill('SIGKILL');
    await exit;
  }

  /** The same server anew: its data and its scripts are gone, its clock is not. */
  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  async stop(): Promise<void> {
    this.closeClients();
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  private spawn(): ChildProcess {
    const log = openSync(this.logFile, 'w');
    const env = { ...process.env, ...clockEnvironment(this.clock), ...this.options.env };
    const [program = '', ...first] = this.options.command ?? ['redis-server'];
    const args = [...first, ...this.args];
    const child = spawn(program, args, { cwd: this.folder, env, stdio: ['ignore', log, log] });
    closeSync(log);
    child.unref(); // a test that forgets to stop it must not keep jest from ending; the shim ends it then
    return child;
  }

  private get args(): string[] {
    const { args = [], config, password, cluster } = this.options;
    return [
      ...(config === undefined ? [] : ['redis.conf']),
      ...['--port', String(this.port), '--bind', this.host, '--save', '', '--appendonly', 'no'],
      ...(password ? ['--requirepass', password] : []),
      ...(cluster ? ['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1'] : []),
      ...args,
    ];
  }

  private get logFile(): string {
    return join(this.folder, 'server.log');
  }

  private async untilReady(child: ChildProcess): Promise<void> {
    const deadline = performance.now() + START_TIMEOUT_MS;
    while (!(await this.answers())) {
      if (hasEnded(child) || performance.now() > deadline) {
        throw new Error(`redis-server did not start on port ${this.port}:\n${this.logTail()}`);
      }
      await sleep(10);
    }
  }

  /** Whether it is this very process that answers, and not another server that holds the port. */
  private async answers(): Promise<boolean> {
    const probe = this.client({ retryStrategy: () => null, connectTimeout: 1000, commandTimeout: 1000 });
    try {
      return (await probe.info('server')).includes(`process_id:${this.pid}\r`);
    } catch {
      return false;
    } finally {
      this.release(probe);
    }
  }

  private logTail(): string {
    return readFileSync(this.logFile, 'utf8').split('\n').slice(-15).join('\n');
  }

  private async untilClusterIsUp(): Promise<void> {
    const node = this.client();
    const slots = await node.call('CLUSTER', 'SLOTS');
    // ADDSLOTSRANGE would be shorter, but is newer than 6.2. A node that restarts knows its slots.
    if ((slots as unknown[]).length === 0) await node.call('CLUSTER', 'ADDSLOTS', ...Array(SLOTS).keys());
    this.clock.advance(CLUSTER_START_MS);
    await eventually(async () => {
      const info = String(await node.call('CLUSTER', 'INFO'));
      if (!info.includes('cluster_state:ok')) throw new Error(`The Cluster does not come up:\n${info}`);
    });
    this.clock.advance(-CLUSTER_START_MS);
    this.release(node);
  }
}

const hasEnded = (child: ChildProcess): boolean => child.exitCode !== null || child.signalCode !== null;

/**
 * Starts a redis-server and waits until it answers. `stop()` it, or let `await using` do so.
 *
 * @example await using server = await startRedisServer({ cluster: true });
 */
export async function startRedisServer(options: RedisServerOptions = {}): Promise<RedisServer> {
  for (let attempt = 1; ; attempt++) {
    const server = new RedisServer(randomPort(), mkdtempSync(join(tmpdir(), 'syncguard-redis-')), options);
    try {
      await server.start();
      return server;
    } catch (error) {
      await server.stop();
      if (attempt === START_ATTEMPTS || !/Address already in use/.test(String(error))) throw error;
    }
  }
}
