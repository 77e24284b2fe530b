// Taken before a spec can put fake timers in their place.
const now = performance.now.bind(performance);
const { setInterval: every, clearInterval: stop } = globalThis;

const TICK_MS = 10;
/** A longer turn of the event loop counts as this much. */
const LONGEST_TURN_MS = 50;

/**
 * Starts a clock that stands still while this process does: gives how many milliseconds it has run so far. A machine
 * with too few cores stops a process for a second now and then, which says nothing about the code under test.
 *
 * @example
 * const elapsedMs = stopwatch();
 * await call();
 * expect(elapsedMs()).toBeLessThan(1_000);
 */
export function stopwatch(): () => number {
  let elapsedMs = 0;
  let turnMs = now();
  const turn = (): void => {
    const lastMs = turnMs;
    turnMs = now();
    elapsedMs += Math.min(turnMs - lastMs, LONGEST_TURN_MS);
  };
  const ticking = every(turn, TICK_MS).unref();
  return () => {
    turn();
    stop(ticking);
    return elapsedMs;
  };
}
