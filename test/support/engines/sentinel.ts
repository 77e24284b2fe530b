import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis, type RedisOptions } from 'ioredis';
import { eventually } from '../eventually.js';
import { type RedisServer, type RedisServerOptions, startRedisServer } from '../redis-server.js';
import { ServerClock } from '../server-clock.js';
import { ask, expectCopied, expectLinked, roleOf } from './ask.js';

export interface SentinelGroupOptions extends Pick<RedisServerOptions, 'args' | 'command'> {
  /** 1 */
  replicas?: number;
  /** After so long without an answer the Sentinels take the primary for dead: 1 s */
  downAfterMs?: number;
}

const NAME = 'main';
const SENTINELS = 3;
const PATIENCE = { timeoutMs: 20_000 };

/** A primary, its replicas, and Sentinels that put a replica in its place. The data servers share a clock. */
export class SentinelGroup {
  /** What the Sentinels call the primary. */
  readonly name = NAME;

  /** @internal Use startSentinelGroup(). */
  constructor(
    /** Primary and replicas: who is what changes with every failover. */
    readonly servers: readonly RedisServer[],
    readonly sentinels: RedisServer[],
    readonly clock: ServerClock,
    private readonly folder: string,
  ) {}

  /** For ioredis, as users write it. */
  get options(): { sentinels: { host: string; port: number }[]; name: string } {
    return { sentinels: this.sentinels.map(({ host, port }) => ({ host, port })), name: this.name };
  }

  /** A client that is closed with the group. */
  client(options: RedisOptions = {}): Redis {
    const client = new Redis({ ...this.options, disconnectTimeout: 100, ...options });
    return this.track(client.on('error', () => {}));
  }

  track<T extends { disconnect(): void }>(client: T): T {
    return this.first.track(client);
  }

  closeClients(): void {
    for (const server of [...this.servers, ...this.sentinels]) server.closeClients();
  }

  /** The server that the Sentinels take for the primary. */
  async primary(): Promise<RedisServer> {
    const [, port] = await ask<string[]>(
      this.sentinels[0] as RedisServer,
      'SENTINEL',
      'GET-MASTER-ADDR-BY-NAME',
      NAME,
    );
    const server = this.servers.find((each) => each.port === Number(port));
    if (!server)
      throw new Error(`The Sentinels name a primary on port ${port}, which is none of this group.`);
    return server;
  }

  async flush(): Promise<void> {
    await ask(await this.primary(), 'FLUSHALL');
  }

  /** All Sentinels name another primary than this one, which is a primary indeed. */
  async untilSwitchedFrom(old: RedisServer): Promise<RedisServer> {
    return eventually(async () => {
      const next = await this.primary();
      if (next === old) throw new Error(`Port ${old.port} is the primary still.`);
      if ((await roleOf(next)) !== 'master') throw new Error(`Port ${next.port} is no primary yet.`);
      return next;
    }, PATIENCE);
  }

  /** Every server is up, one is the primary, and the others copy it: a failover that comes now loses nothing. */
  async untilReplicated(): Promise<void> {
    await eventually(async () => {
      const primary = await this.primary();
      for (const server of this.servers) {
        await expectLinked(server);
        const role = await roleOf(server);
        if (role !== (server === primary ? 'master' : 'slave'))
          throw new Error(`Port ${server.port} is ${role}.`);
        if (server !== primary) await expectCopied(primary, server);
      }
    }, PATIENCE);
    await this.untilKnown();
  }

  async stop(): Promise<void> {
    await Promise.all([...this.servers, ...this.sentinels].map((server) => server.stop()));
    rmSync(this.folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  /** Every Sentinel knows the others and a replica that is well: only then do they fail over. */
  private async untilKnown(): Promise<void> {
    const replicas = this.servers.length - 1;
    await eventually(async () => {
      for (const sentinel of this.sentinels) {
        const state = await ask<string[]>(sentinel, 'SENTINEL', 'MASTER', NAME);
        const at = (field: string): number => Number(state[state.indexOf(field) + 1]);
        if (at('num-slaves') < replicas || at('num-other-sentinels') < SENTINELS - 1)
          throw new Error(`Sentinel ${sentinel.port} does not know them all:\n${state.join(' ')}`);
        for (const replica of await ask<string[][]>(sentinel, 'SENTINEL', 'REPLICAS', NAME))
          if (!replica.includes('ok')) throw new Error(`Sentinel ${sentinel.port} sees ${replica.join(' ')}`);
      }
    }, PATIENCE);
  }

  private get first(): RedisServer {
    return this.servers[0] as RedisServer;
  }
}

/** Sentinels look at who copies whom every 10 s; here, 20 times as often. Redis 6.2 cannot be told: it takes longer. */
const hurry = (sentinel: RedisServer): Promise<unknown> =>
  ask(sentinel, 'SENTINEL', 'DEBUG', 'INFO-PERIOD', 500, 'PUBLISH-PERIOD', 500).catch(() => {});

const sentinelConfig = (port: number, downAfterMs: number): string =>
  [
    `sentinel monitor ${NAME} 127.0.0.1 ${port} ${Math.ceil((SENTINELS + 1) / 2)}`,
    `sentinel down-after-milliseconds ${NAME} ${downAfterMs}`,
    // Also how long a Sentinel whose vote failed waits until it tries again.
    `sentinel failover-timeout ${NAME} 3000`,
  ].join('\n');

/**
 * Starts a primary with replicas and three Sentinels, and waits until a failover would succeed. `stop()` it, or let
 * `await using` do so.
 *
 * @example await using group = await startSentinelGroup();
 */
export async function startSentinelGroup({
  replicas = 1,
  downAfterMs = 1_000,
  args = [],
  command,
}: SentinelGroupOptions = {}): Promise<SentinelGroup> {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-sentinels-'));
  const clock = ServerClock.create(join(folder, 'clock'));
  const data = (...more: string[]): Promise<RedisServer> =>
    startRedisServer({
      args: [
        ...['--repl-timeout', '1000000', '--repl-diskless-sync', 'yes', '--repl-diskless-sync-delay', '0'],
        ...args,
        ...more,
      ],
      command,
      clock,
    });
  const servers: RedisServer[] = [];
  const group = new SentinelGroup(servers, [], clock, folder);
  try {
    const primary = await data();
    servers.push(primary);
    for (let i = 0; i < replicas; i++)
      servers.push(await data('--replicaof', primary.host, String(primary.port)));
    await eventually(() => Promise.all(servers.map(expectLinked)), PATIENCE);
    const config = sentinelConfig(primary.port, downAfterMs);
    for (let i = 0; i < SENTINELS; i++)
      group.sentinels.push(await startRedisServer({ args: ['--sentinel'], config, command }));
    await Promise.all(group.sentinels.map(hurry));
    await group.untilReplicated();
    return group;
  } catch (error) {
    await group.stop();
    throw error;
  }
}
