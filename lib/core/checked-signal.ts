import { setMaxListeners } from 'node:events';

/**
 * Creates a signal whose `aborted`, `reason` and `throwIfAborted` first call `check`, which may abort it. So they are right
 * also before a timer had its turn.
 */
export function checkedSignal(check: () => void): AbortController {
  const controller = new AbortController();
  const { signal } = controller;
  setMaxListeners(0, signal); // It may be passed to any number of calls.
  const read = (name: 'aborted' | 'reason'): unknown => {
    check();
    return Reflect.get(AbortSignal.prototype, name, signal);
  };
  Object.defineProperties(signal, {
    aborted: { get: () => read('aborted') },
    reason: { get: () => read('reason') },
    throwIfAborted: {
      value: () => {
        if (read('aborted')) throw read('reason');
      },
    },
  });
  return controller;
}
