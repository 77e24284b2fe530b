import { setImmediate as realTurn } from 'node:timers/promises';
import { workerRedis } from './redis.js';

const STEP_MS = 20;

/**
 * Time that stands still until the test moves it: timers, the clocks of this process and the clock of the worker's Redis.
 * What is sent meanwhile reaches Redis for real. `end()` brings the real time back.
 *
 * @example
 * const time = movedTime();
 * await time.pass(3_500); // as `sleep(3_500)`, and takes a few ms
 */
export function movedTime(): { pass(ms: number): Promise<void>; end(): void } {
  const redis = workerRedis().client();
  jest.useFakeTimers({ doNotFake: ['nextTick', 'queueMicrotask', 'setImmediate', 'clearImmediate'] });
  return {
    async pass(ms) {
      for (let left = ms; left > 0; left -= STEP_MS) {
        const step = Math.min(STEP_MS, left);
        workerRedis().clock.advance(step);
        jest.advanceTimersByTime(step);
        // Redis has replied to what the timers sent when it replies to this.
        await redis.ping();
        await realTurn();
        await realTurn();
      }
    },
    end: () => jest.useRealTimers(),
  };
}
