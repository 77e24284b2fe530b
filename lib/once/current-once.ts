import { AsyncLocalStorage } from 'node:async_hooks';
import type { OnceContext } from './once.types.js';

/** A run around the running code. */
export interface OnceFrame {
  /** None under a call over HTTP without a key, which may pass. */
  readonly context: OnceContext | undefined;
  /** Over HTTP the guard was asked about the call of this handler, whose decorator only calls the body. */
  readonly handler?: object | undefined;
  /** Calls the body of that handler. */
  around?(body: () => unknown): unknown;
  readonly outer: OnceFrame | undefined;
  /** False once the body has ended. Work that it left running then has no run. */
  active: boolean;
}

// All copies of this package in the process share one storage.
const STORAGE = Symbol.for('syncguard:als:once');
const shared = globalThis as { [STORAGE]?: AsyncLocalStorage<OnceFrame> };

export const onceFrames = (): AsyncLocalStorage<OnceFrame> =>
  (shared[STORAGE] ??= new AsyncLocalStorage<OnceFrame>());

export function innermostFrame(): OnceFrame | undefined {
  let frame = onceFrames().getStore();
  while (frame && !frame.active) frame = frame.outer;
  return frame;
}

/**
 * Returns the run of the running code. Undefined outside of `OnceService.run()` and `@Once()`.
 *
 * @example
 * const { attempt, fence } = currentOnce() ?? {};
 */
export const currentOnce = (): OnceContext | undefined => innermostFrame()?.context;
