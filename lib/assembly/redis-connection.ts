import { setTimeout as sleep } from 'node:timers/promises';
import { connectionsOf, type RedisClient, type RedisConnectionOptions } from '../redis/redis.client.js';
import { openConnection } from '../redis/redis.connect.js';
import { type RedisFault, toRedisFault } from '../redis/redis.errors.js';
import { HangWatch } from '../redis/redis.hang-watch.js';
import { isRedisClient } from '../redis/redis.options.js';
import { tagsOfMasters } from '../redis/redis.slots.js';
import { defineScript, unexpectedReply } from '../script/define-script.js';
import { ScriptRunner } from '../script/script-runner.js';
import { clientWarnings, serverWarnings } from '../redis/redis.server-warnings.js';

const FIRST_CONNECTION_MS = 2_000;
const LAST_ANSWER_MS = 1_000;

/**
 * health: Proves that scripts run and may write. A replica and a full server refuse it.
 * KEYS: health
 * ARGV: none
 * Reply: 1
 * Atomic: no key stays.
 */
export const healthScript = defineScript({
  name: 'health',
  keys: ['health'],
  args: [],
  lua: /* lua */ `redis.call('SET', health, '1', 'PX', 1000) redis.call('DEL', health) return 1`,
  decode: (reply): void => (reply === 1 ? undefined : unexpectedReply('health', reply)),
});

export interface RedisConnectionConfig {
  readonly redis: RedisConnectionOptions;
  readonly keyPrefix: string;
  readonly commandTimeoutMs: number;
  readonly closeClient: boolean;
}

/** Runs the scripts of an app on our own connection, or on a client that its user closes unless `closeClient` is set. */
export class RedisConnection {
  readonly runner: ScriptRunner;
  readonly #client: RedisClient;
  readonly #isOurs: boolean;

  constructor(private readonly config: RedisConnectionConfig) {
    const { redis, commandTimeoutMs } = config;
    this.#isOurs = !isRedisClient(redis);
    this.#client = isRedisClient(redis)
      ? redis
      : openConnection(redis as Exclude<RedisConnectionOptions, RedisClient>);
    const hangs = this.#isOurs ? new HangWatch(this.#client, commandTimeoutMs) : undefined;
    this.runner = new ScriptRunner(this.#client, commandTimeoutMs, hangs);
  }

  /** Waits up to 2 s for the first connection. Returns its fault, if any, and warnings about client and servers. */
  async opened(): Promise<{ fault: RedisFault | undefined; warnings: string[] }> {
    await this.#firstConnection();
    const warnings = clientWarnings(this.#client, { own: this.#isOurs });
    const { readiness } = this.runner;
    if (!readiness.ready) return { fault: readiness.fault(), warnings };
    // INFO is read before anything is written, because a connection is dropped once a replica has refused a write.
    warnings.push(...(await this.#serverWarnings()));
    return { fault: await this.check(), warnings };
  }

  /** Writes a key on the server, or on each master of a Cluster. Returns the fault, if there is one. */
  async check(): Promise<RedisFault | undefined> {
    const tags = this.#client.isCluster ? tagsOfMasters(this.#client) : [];
    const key = `${this.config.keyPrefix}/health`;
    const keys = tags.length > 0 ? tags.map((tag) => `${key}:{${tag}}`) : [key];
    try {
      await Promise.all(keys.map((health) => this.runner.run(healthScript, { health }, {})));
      return undefined;
    } catch (fault) {
      return toRedisFault(fault);
    }
  }

  /** Adds a function that is called when a lost connection is back. The server may have lost its scripts and data. */
  onBack(listener: () => void): void {
    this.runner.readiness.onBack(listener);
  }

  async close(): Promise<void> {
    this.runner.close();
    if (!this.#isOurs && !this.config.closeClient) return;
    // Nobody can act on errors during the close. Without a listener ioredis would print them.
    this.#client.on?.('error', () => {});
    // QUIT lets sent commands be answered. A server that does not answer must not delay the shutdown.
    if (this.runner.readiness.ready)
      await Promise.race([
        this.#client.quit?.().catch(() => {}),
        sleep(LAST_ANSWER_MS, undefined, { ref: false }),
      ]);
    this.#client.disconnect?.();
  }

  async #firstConnection(): Promise<void> {
    const { isCluster, options } = this.#client;
    const { readiness } = this.runner;
    if (readiness.ready && !isCluster && options?.db) await this.#checkDatabase(options.db);
    if (readiness.ready) return;
    const { ready, cancel } = readiness.wait();
    await withinTwoSeconds(ready);
    cancel();
    if (!readiness.ready) this.runner.unanswered();
  }

  async #serverWarnings(): Promise<string[]> {
    const masters = connectionsOf(this.#client, 'master');
    const infos = masters.map(async (node) => ({
      address: `${node.options?.host}:${node.options?.port}`,
      info: await withinTwoSeconds(node.info?.()),
    }));
    return serverWarnings(await Promise.all(infos), this.#client.isCluster === true);
  }

  /** If the database of the options does not exist, ioredis may have reported it before we listened. */
  async #checkDatabase(db: number): Promise<void> {
    const actual = /\bdb=(\d+)/.exec(String(await withinTwoSeconds(this.#client.client?.('INFO'))))?.[1];
    if (actual !== undefined && Number(actual) !== db)
      this.runner.readiness.refuseDatabase(new Error(`DB index is out of range: ${db}`));
  }
}

/** Resolves to the value if it comes within 2 s, else to undefined. Also resolves to undefined on a rejection. */
const withinTwoSeconds = <T>(promise: Promise<T> | undefined): Promise<T | undefined> =>
  Promise.race([promise?.catch(() => undefined), sleep(FIRST_CONNECTION_MS, undefined, { ref: false })]);
