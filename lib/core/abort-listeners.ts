/** What is told that a signal has aborted. */
export interface AbortListener {
  handleEvent(): void;
}

const listeners = new WeakMap<AbortSignal, Set<AbortListener>>();

/**
 * Adds a listener to a signal that any number of calls may share, such as that of a shutdown. Node walks all listeners of
 * a signal to add one, so thousands of them would stop the process. Here they share one.
 */
export function onAbort(signal: AbortSignal, listener: AbortListener): void {
  const all = listeners.get(signal) ?? new Set();
  if (all.size === 0) {
    listeners.set(signal, all);
    signal.addEventListener('abort', tellAll);
  }
  all.add(listener);
}

export function offAbort(signal: AbortSignal, listener: AbortListener): void {
  const all = listeners.get(signal);
  if (all?.delete(listener) && all.size === 0) signal.removeEventListener('abort', tellAll);
}

function tellAll(this: AbortSignal): void {
  for (const listener of [...(listeners.get(this) ?? [])]) listener.handleEvent();
}
