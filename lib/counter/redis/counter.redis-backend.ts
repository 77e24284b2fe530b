import type { CallOptions } from '../../core/validate.js';
import { hashTag } from '../../redis/redis.keys.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import type { CounterBackend, CounterCall, CounterReply } from '../counter.backend.js';
import { incrementScript, peekCounterScript, resetCounterScript } from './counter.scripts.js';

const TAG_LENGTH = 22;

/** Counters on Redis. Each operation is one atomic script. */
export class RedisCounterBackend implements CounterBackend {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: { readonly keyPrefix: string },
  ) {}

  increment(call: CounterCall, { signal }: CallOptions): Promise<CounterReply> {
    const { key, callId, remember, max, cost, windowMs } = call;
    const args = { callId: hashTag(callId, TAG_LENGTH), remember: remember ? 1 : 0, max, cost, windowMs };
    return this.runner.run(incrementScript, this.#keysOf(key), args, { signal });
  }

  peek(key: string, { signal }: CallOptions): Promise<Omit<CounterReply, 'ok'>> {
    return this.runner.run(peekCounterScript, this.#keysOf(key), {}, { signal });
  }

  reset(key: string, { signal }: CallOptions): Promise<void> {
    return this.runner.run(resetCounterScript, this.#keysOf(key), {}, { signal });
  }

  #keysOf(key: string): { counter: string } {
    return { counter: `${this.config.keyPrefix}/counter:{${hashTag(key, TAG_LENGTH)}}` };
  }
}
