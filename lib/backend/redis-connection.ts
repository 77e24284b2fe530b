import { setTimeout as sleep } from 'node:timers/promises';
import type { RedisClient, RedisConnectionOptions } from '../redis/redis.client.js';
import { openConnection } from '../redis/redis.connect.js';
import { type RedisFault, toRedisFault } from '../redis/redis.errors.js';
import { defineScript, unexpectedReply } from '../script/define-script.js';
import { ScriptRunner } from '../script/script-runner.js';
import { isRedisClient } from '../syncguard.options.js';

const FIRST_CONNECTION_MS = 2_000;
const LAST_ANSWER_MS = 1_000;

/** Proves that scripts run, not only that the server answers. */
export const pingScript = defineScript({
  name: 'ping',
  keys: [],
  args: [],
  lua: 'return 1',
  decode: (reply): void => (reply === 1 ? undefined : unexpectedReply('ping', reply)),
});

export interface RedisConnectionConfig {
  readonly redis: RedisConnectionOptions;
  readonly commandTimeoutMs: number;
  readonly closeClient: boolean;
}

/** The app's one connection: our own, or the user's client, which stays the user's to close. */
export class RedisConnection {
  readonly runner: ScriptRunner;
  readonly #client: RedisClient;
  readonly #closes: boolean;

  constructor({ redis, commandTimeoutMs, closeClient }: RedisConnectionConfig) {
    const theirs = isRedisClient(redis);
    this.#client = theirs ? redis : openConnection(redis as Exclude<RedisConnectionOptions, RedisClient>);
    this.#closes = !theirs || closeClient;
    this.runner = new ScriptRunner(this.#client, commandTimeoutMs);
  }

  /** Waits for the first connection, up to 2 s; gives what is wrong, if it did not come. */
  opened(): Promise<RedisFault | undefined> {
    return this.check(FIRST_CONNECTION_MS);
  }

  /** Runs the smallest script. Gives what is wrong, if something is. */
  check(timeoutMs?: number): Promise<RedisFault | undefined> {
    return this.runner.run(pingScript, {}, {}, { timeoutMs }).then(() => undefined, toRedisFault);
  }

  /** INFO as the server gives it; undefined where it is forbidden or does not come. */
  async info(): Promise<string | undefined> {
    if (!this.runner.readiness.ready) return undefined;
    const patience = sleep(FIRST_CONNECTION_MS, undefined, { ref: false });
    return Promise.race([this.#client.info?.().catch(() => undefined), patience]);
  }

  async close(): Promise<void> {
    this.runner.close();
    if (!this.#closes) return;
    // QUIT lets what was sent be answered; a server that does not answer must not hold the shutdown up.
    if (this.runner.readiness.ready)
      await Promise.race([
        this.#client.quit?.().catch(() => {}),
        sleep(LAST_ANSWER_MS, undefined, { ref: false }),
      ]);
    this.#client.disconnect?.();
  }
}
