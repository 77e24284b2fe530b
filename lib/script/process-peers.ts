import { randomUUID } from 'node:crypto';
import { safely } from '../core/foreign-values.js';
import { pause } from '../core/pause.js';
import type { Peers } from '../core/peers.js';
import type { CallOptions } from '../core/validate.js';
import { abortedBy } from '../redis/redis.errors.js';
import { ALL, type ProcessChannel } from './process-channel.js';
import { publishScript } from './publish.script.js';
import type { ScriptRunner } from './script-runner.js';

const ANSWERS_MS = 300;

/** What goes to all, and comes back to the process that has asked. */
interface Message {
  readonly nonce: string;
  readonly asker?: string;
  readonly question?: unknown;
  readonly answer?: unknown;
}

/** Asks the other processes over the channel of hand-overs. */
export class ProcessPeers implements Peers {
  readonly #answers = new Map<string, unknown[]>();
  readonly #answerers: ((question: unknown) => unknown)[] = [];

  constructor(
    private readonly runner: ScriptRunner,
    private readonly channel: ProcessChannel,
  ) {
    channel.join({ onMessage: (message) => this.#hear(message), isNeeded: () => true });
    channel.rely();
    runner.readiness.onBack(() => channel.rely());
  }

  answerBy(answer: (question: unknown) => unknown): void {
    this.#answerers.push(answer);
  }

  async ask(question: unknown, { signal }: CallOptions = {}): Promise<readonly unknown[]> {
    const nonce = randomUUID();
    const answers: unknown[] = [];
    this.#answers.set(nonce, answers);
    try {
      await this.#tell(ALL, { nonce, asker: this.channel.process, question }, signal);
      await pause(ANSWERS_MS, { signals: [signal] });
      if (signal?.aborted) throw abortedBy(signal);
      return answers;
    } finally {
      this.#answers.delete(nonce);
    }
  }

  #hear(text: string): void {
    const { nonce = '', asker, question, answer } = messageIn(text);
    if (asker === undefined) this.#answers.get(nonce)?.push(answer);
    else if (asker !== this.channel.process)
      for (const answerBy of this.#answerers) {
        const own = answerBy(question);
        // An answer that is lost is missed, as that of a process which hangs.
        if (own !== undefined) this.#tell(asker, { nonce, answer: own }).catch(() => {});
      }
  }

  async #tell(process: string, message: Message, signal?: AbortSignal): Promise<void> {
    const text = JSON.stringify(message);
    const args = { channel: this.channel.name + process, message: text };
    await this.runner.run(publishScript, {}, args, { signal });
  }
}

/** The other messages of the channel are no JSON. */
const messageIn = (text: string): Partial<Message> =>
  (text.startsWith('{') && safely(() => JSON.parse(text) as Message)) || {};
