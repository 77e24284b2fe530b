import type { SyncGuardError } from '../core/errors.js';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  clientKeyPrefix,
  connectionsOf,
  type RedisClient,
  type RedisConnectionOptions,
} from '../redis/redis.client.js';
import { openConnection } from '../redis/redis.connect.js';
import { aclFault, forbiddenCommand, type RedisFault, toRedisFault } from '../redis/redis.errors.js';
import { hangWatch } from '../redis/redis.hang-watch.js';
import { isRedisClient } from '../redis/redis.options.js';
import { tagsOfMasters } from '../redis/redis.slots.js';
import { defineScript, unexpectedReply } from '../script/define-script.js';
import { ScriptRunner } from '../script/script-runner.js';
import { aclWarning, clientWarnings, serverWarnings } from '../redis/redis.server-warnings.js';
import { aclScript, neededCommands } from './acl-probe.js';

const FIRST_CONNECTION_MS = 2_000;
const LAST_ANSWER_MS = 1_000;
/** After refusals the ACL is asked once in this time, in ms. */
const ACL_PAUSE_MS = 1_000;

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
  /** Called when the ACL is found to forbid other commands of our scripts than before. */
  readonly warn?: (message: string) => void;
}

/** Runs the scripts of an app on our own connection, or on a client that its user closes unless `closeClient` is set. */
export class RedisConnection {
  readonly runner: ScriptRunner;
  readonly #client: RedisClient;
  readonly #isOurs: boolean;
  readonly #config: Omit<RedisConnectionConfig, 'redis'>;
  #askedAtMs = -Infinity;
  #asking: NodeJS.Timeout | undefined;

  constructor({ redis, ...config }: RedisConnectionConfig) {
    const { commandTimeoutMs } = config;
    this.#config = config;
    this.#isOurs = !isRedisClient(redis);
    this.#client = isRedisClient(redis)
      ? redis
      : openConnection(redis as Exclude<RedisConnectionOptions, RedisClient>);
    const suspect = this.#isOurs ? hangWatch(this.#client, commandTimeoutMs) : undefined;
    this.runner = new ScriptRunner(this.#client, commandTimeoutMs, suspect);
    this.runner.onForbidden = () => this.#askSoon();
    this.onBack(() => this.#askSoon());
  }

  /** The client, and how all names of our keys begin on its server. */
  get namespace(): { readonly client: RedisClient; readonly prefix: string } {
    return { client: this.#client, prefix: clientKeyPrefix(this.#client) + this.#config.keyPrefix };
  }

  /** Waits up to 2 s for the first connection. Returns its fault, if any, and warnings about client and servers. */
  async opened(): Promise<{ fault: RedisFault | undefined; warnings: string[] }> {
    await this.#firstConnection();
    const warnings = clientWarnings(this.#client, { own: this.#isOurs });
    const { readiness } = this.runner;
    if (!readiness.ready) return { fault: readiness.fault(), warnings };
    // INFO is read before anything is written, because a connection is dropped once a replica has refused a write.
    warnings.push(...(await this.#serverWarnings()));
    await this.askAcl();
    const fault = await this.#write();
    return { fault: this.runner.forbidden.length > 0 ? undefined : fault, warnings };
  }

  /** Writes a key on the server, or on each master of a Cluster. Returns the fault, if there is one. */
  async check(): Promise<SyncGuardError | undefined> {
    const fault = await this.#write();
    // A permission that was missing may be back, and one that is missing now is named.
    if (this.runner.forbidden.length > 0 || (fault && forbiddenCommand(fault.cause) !== undefined))
      await this.askAcl();
    const { forbidden } = this.runner;
    return forbidden.length > 0 ? aclFault(forbidden) : fault;
  }

  /** Asks which commands of our scripts the ACL forbids, on each master. Without an answer what is known stays. */
  async askAcl(): Promise<void> {
    this.#askedAtMs = performance.now();
    const commands = neededCommands().join(' ');
    const asked = this.#keys('health:acl').map((scratch) =>
      this.runner.run(aclScript, { scratch }, { commands }),
    );
    let forbidden: string[];
    try {
      forbidden = [...new Set((await Promise.all(asked)).flat())].sort();
    } catch (fault) {
      const command = forbiddenCommand((fault as RedisFault).cause); // EVALSHA, which runs the scripts
      if (!command) return;
      forbidden = [command];
    }
    const isNews = forbidden.join() !== this.runner.forbidden.join();
    this.runner.forbidden = forbidden;
    if (isNews && forbidden.length > 0) this.#config.warn?.(aclWarning(forbidden));
  }

  /** Adds a function that is called when a lost connection is back. The server may have lost its scripts and data. */
  onBack(listener: () => void): void {
    this.runner.readiness.onBack(listener);
  }

  async close(): Promise<void> {
    clearTimeout(this.#asking);
    this.runner.onForbidden = undefined;
    this.runner.close();
    if (!this.#isOurs && !this.#config.closeClient) return;
    // Nobody can act on errors during the close. Without a listener ioredis would print them.
    this.#client.on?.('error', () => {});
    // QUIT lets sent commands be answered. A server that does not answer must not delay the shutdown.
    if (this.runner.readiness.ready) await answerWithin(LAST_ANSWER_MS, this.#client.quit?.());
    this.#client.disconnect?.();
  }

  async #write(): Promise<RedisFault | undefined> {
    try {
      await Promise.all(this.#keys('health').map((health) => this.runner.run(healthScript, { health }, {})));
      return undefined;
    } catch (fault) {
      return toRedisFault(fault);
    }
  }

  /** Returns a key, or one for each master of a Cluster. */
  #keys(name: string): string[] {
    const key = `${this.#config.keyPrefix}/${name}`;
    const tags = this.#client.isCluster ? tagsOfMasters(this.#client) : [];
    return tags.length > 0 ? tags.map((tag) => `${key}:{${tag}}`) : [key];
  }

  /** The refusals of a second are one reason to ask. */
  #askSoon(): void {
    const waitMs = Math.max(0, this.#askedAtMs + ACL_PAUSE_MS - performance.now());
    this.#asking ??= setTimeout(() => {
      this.#asking = undefined;
      void this.askAcl();
    }, waitMs).unref();
  }

  async #firstConnection(): Promise<void> {
    const { isCluster, options } = this.#client;
    const { readiness } = this.runner;
    if (readiness.ready && !isCluster && options?.db) await this.#checkDatabase(options.db);
    if (readiness.ready) return;
    const { ready, cancel } = readiness.wait();
    await answerWithin(FIRST_CONNECTION_MS, ready);
    cancel();
    if (!readiness.ready) this.runner.unanswered();
  }

  async #serverWarnings(): Promise<string[]> {
    const masters = connectionsOf(this.#client, 'master');
    const infos = masters.map(async (node) => ({
      address: `${node.options?.host}:${node.options?.port}`,
      info: await answerWithin(FIRST_CONNECTION_MS, node.info?.()),
    }));
    return serverWarnings(await Promise.all(infos), this.#client.isCluster === true);
  }

  /** If the database of the options does not exist, ioredis may have reported it before we listened. */
  async #checkDatabase(db: number): Promise<void> {
    const info = await answerWithin(FIRST_CONNECTION_MS, this.#client.client?.('INFO'));
    const actual = /\bdb=(\d+)/.exec(String(info))?.[1];
    if (actual !== undefined && Number(actual) !== db)
      this.runner.readiness.refuseDatabase(new Error(`DB index is out of range: ${db}`));
  }
}

/** Resolves to the value if it comes within `ms`, else to undefined. Also resolves to undefined on a rejection. */
const answerWithin = <T>(ms: number, answer: Promise<T> | undefined): Promise<T | undefined> =>
  Promise.race([answer?.catch(() => undefined), sleep(ms, undefined, { ref: false })]);
