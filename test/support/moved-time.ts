import { setImmediate as realTurn } from 'node:timers/promises';
import { workerRedis } from './redis.js';

const STEP_MS = 20;
/** Turns of the real event loop in a step: a command goes to Redis and its reply comes back. */
const TURNS = 4;

/**
 * Time that stands still until the test moves it: timers, the clocks of this process and the clock of the worker's Redis.
 * What is sent meanwhile reaches Redis for real. `end()` brings the real time back.
 *
 * @example
 * const time = movedTime();
 * await time.pass(3_500); // as `sleep(3_500)`, and takes a few ms
 */
export function movedTime(): { pass(ms: number): Promise<void>; end(): void } {
  jest.useFakeTimers({ doNotFake: ['nextTick', 'queueMicrotask', 'setImmediate', 'clearImmediate'] });
  return {
    async pass(ms) {
      for (let left = ms; left > 0; left -= STEP_MS) {
        const step = Math.min(STEP_MS, left);
        workerRedis().clock.advance(step);
        jest.advanceTimersByTime(step);
        for (let turn = 0; turn < TURNS; turn++) await realTurn();
      }
    },
    end: () => jest.useRealTimers(),
  };
}
