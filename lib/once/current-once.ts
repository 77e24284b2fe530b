import { type Frame, Frames } from '../core/frames.js';
import type { OnceContext } from './once.types.js';

/** A run around the running code. */
export interface OnceFrame extends Frame<OnceFrame> {
  /** None under a call over HTTP without a key, which may pass. */
  readonly context: OnceContext | undefined;
  /** Over HTTP the guard was asked about the call of this handler, whose decorator only calls the body. */
  readonly handler?: object | undefined;
  /** Calls the body of that handler. */
  around?(body: () => unknown): unknown;
}

export const onceFrames = new Frames<OnceFrame>('syncguard:als:once');

/**
 * Returns the run of the running code. Undefined outside of `OnceService.run()` and `@Once()`.
 *
 * @example
 * const { attempt, fence } = currentOnce() ?? {};
 */
export const currentOnce = (): OnceContext | undefined => onceFrames.find()?.context;
