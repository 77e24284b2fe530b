import { randomBytes } from 'node:crypto';
import { Injectable, type OnApplicationShutdown } from '@nestjs/common';
import { days } from '../core/time.js';
import { type CallOptions, callOptions, integer, userKey } from '../core/validate.js';
import type { CounterBackend, CounterCall } from './counter.backend.js';
import type { CounterResult, CounterState, IncrementOptions, PeekCounterOptions } from './counter.types.js';
import { attributed, checked, CounterError } from './counter.errors.js';

const MAX_WINDOW_MS = days(3_650);

/**
 * Counts up to a maximum and never past it, for a quota of 100 exports a day, or 3 trial runs. A window starts with its
 * first increment. Around the end of a window up to twice the maximum gets through. So use AbuseLimiterService against
 * a client that sends too many calls in a short time.
 *
 * @example
 * const { ok, remaining } = await counters.increment(`exports:${user}`, { max: 100, windowMs: days(1) });
 * if (!ok) throw new ForbiddenException('No exports left today.');
 */
@Injectable()
export class CounterService implements OnApplicationShutdown {
  readonly #backend: CounterBackend;
  #isClosed = false;

  /** @internal The module creates the service. */
  constructor(backend: CounterBackend) {
    this.#backend = backend;
  }

  /**
   * Adds `cost` to the count if the sum is not above the maximum. Otherwise returns `ok: false` and counts nothing.
   * Concurrent calls do not pass the maximum either.
   *
   * @param key - the name of the count, 1 to 512 UTF-8 bytes
   * @throws CounterError `InvalidArgument` for a wrong call, `Aborted` for an aborted `signal`, `ServiceUnavailable` or
   *   `NetworkTimeout` if Redis does not answer, `AuthFailed` if it refuses the client
   */
  async increment(key: string, options: IncrementOptions): Promise<CounterResult> {
    const call = checked(() => validateIncrement(key, options));
    const reply = await attributed(this.#open.increment(call, options));
    return { ...reply, remaining: Math.max(0, call.max - reply.count) };
  }

  /** Returns the count, without changing it. */
  async peek(key: string, options: PeekCounterOptions = {}): Promise<CounterState> {
    const { max, name } = checked(() => {
      const { max } = callOptions(options, ['max']);
      if (max !== undefined) integer('max', max, 0, Number.MAX_SAFE_INTEGER);
      return { max, name: userKey(key) };
    });
    const reply = await attributed(this.#open.peek(name, options));
    return { ...reply, ...(max === undefined ? {} : { remaining: Math.max(0, max - reply.count) }) };
  }

  /** Sets the count to 0, and forgets the ids of its calls. */
  async reset(key: string, options: CallOptions = {}): Promise<void> {
    const name = checked(() => {
      callOptions(options, []);
      return userKey(key);
    });
    await attributed(this.#open.reset(name, options));
  }

  /** Nest calls this before the connection closes. */
  onApplicationShutdown(): void {
    this.#isClosed = true;
  }

  /** The backend, unless the app has shut down. In memory it would go on, where Redis cannot. */
  get #open(): CounterBackend {
    if (this.#isClosed)
      throw new CounterError({
        code: 'ServiceUnavailable',
        message: 'The app has shut down, so its counters are closed.',
      });
    return this.#backend;
  }
}

function validateIncrement(key: string, options: IncrementOptions): CounterCall {
  const { max, windowMs, cost, id } = callOptions(options, ['max', 'windowMs', 'cost', 'id']);
  return {
    key: userKey(key),
    max: integer('max', max, 0, Number.MAX_SAFE_INTEGER),
    windowMs: integer('windowMs', windowMs, 1, MAX_WINDOW_MS),
    cost: integer('cost', cost ?? 1, 1, Number.MAX_SAFE_INTEGER),
    // The prefix keeps the ids that the app passes apart from random ones.
    callId:
      id === undefined ? `random:${randomBytes(16).toString('base64url')}` : `given:${userKey(id, 'id')}`,
    remember: id !== undefined,
  };
}
