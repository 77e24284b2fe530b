import { randomBytes } from 'node:crypto';
import { settleWithin } from '../core/settle-within.js';
import { type Listener, RedisSubscriber } from '../redis/redis.subscriber.js';
import { NO_PUBSUB } from '../redis/redis.server-warnings.js';
import { publishScript } from './publish.script.js';
import type { ScriptRunner } from './script-runner.js';

/** How long the boot waits for the connection, in ms. */
const OPEN_MS = 400;
const PROCESS_BYTES = 12;

/** In place of the name of a process, in the name of the channel of all. */
export const ALL = 'all';

/**
 * Hears what other processes tell this one: whose turn it is, and which call has ended. All features share one channel, and so
 * one connection.
 */
export class ProcessChannel {
  /** Names this process. It stands behind the beginning of the channel's name. */
  readonly process = randomBytes(PROCESS_BYTES).toString('base64url');
  /** How the names of the channels of all processes begin. */
  readonly name: string;
  readonly #runner: ScriptRunner;
  readonly #subscriber: RedisSubscriber;
  readonly #listeners: Listener[] = [];
  #mayPublish: boolean | undefined;

  /**
   * @param warn - called once, if the ACL forbids SUBSCRIBE or PUBLISH
   * @param hearsAll - whether it also hears what is told to all processes
   */
  constructor(
    runner: ScriptRunner,
    keyPrefix: string,
    private warn?: (message: string) => void,
    hearsAll = false,
  ) {
    this.name = `${keyPrefix}/wake:`;
    this.#runner = runner;
    const channels = [this.name + this.process, ...(hearsAll ? [this.name + ALL] : [])];
    this.#subscriber = new RedisSubscriber(runner.client, channels, {
      onMessage: (message) => this.#listeners.forEach((each) => each.onMessage(message)),
      onListening: () => void this.#comeToHear(),
      onSilence: () => this.#listeners.forEach((each) => each.onSilence?.()),
      isNeeded: () => this.#isNeeded,
    });
  }

  /** Adds one who waits. He hears the messages for the others too. */
  join(listener: Listener): void {
    this.#listeners.push(listener);
  }

  /** Messages can reach this process. */
  get isTold(): boolean {
    return this.#subscriber.isListening && this.#mayPublish === true;
  }

  /** And do reach it: the connection is not silent. */
  get isHeard(): boolean {
    return this.isTold && this.#subscriber.isHeard;
  }

  /** Call this while somebody waits. */
  rely(): void {
    if (this.isTold) this.#subscriber.watch();
    else void this.#listen();
  }

  /** Called at boot. Warns if messages cannot reach this process. */
  async check(): Promise<void> {
    await settleWithin(OPEN_MS, [this.#listen()]);
    if (!this.#isNeeded) this.#subscriber.pause();
  }

  close(): void {
    this.#subscriber.close();
  }

  get #isNeeded(): boolean {
    return this.#listeners.some((each) => each.isNeeded());
  }

  async #comeToHear(): Promise<void> {
    if (this.#mayPublish === undefined) await this.#checkPublish();
    this.#listeners.forEach((each) => each.onListening?.());
  }

  async #listen(): Promise<void> {
    if ((await this.#subscriber.open()) && this.#mayPublish === undefined) await this.#checkPublish();
    if (!this.#subscriber.isRefused && this.#mayPublish !== false) return;
    this.warn?.(NO_PUBSUB);
    this.warn = undefined;
  }

  async #checkPublish(): Promise<void> {
    this.#mayPublish = await this.#runner
      .run(publishScript, {}, { channel: this.name + this.process, message: '' })
      .catch(() => undefined);
  }
}
