/** All processes wait for these. */
export const QUEUE_KEYS = ['{q}:a', '{q}:b'] as const;
/** Of each process. */
export const CALLERS = 8;
export const PROCESSES = 4;
export const QUEUE_LOCK = { ttlMs: 1_500, timeoutMs: 8_000 };

export interface QueueWorkerArguments {
  readonly worker: number;
  readonly file: string;
  readonly address: object | string;
  readonly seed: number;
}

/** What a worker is told to do to itself. */
export interface Order {
  readonly what: 'block' | 'silence main' | 'silence listener' | 'stop';
  readonly ms: number;
}

interface Of {
  readonly worker: number;
  readonly n: number;
  readonly key: string;
  readonly atMs: number;
}

export type Asked = Of & { readonly type: 'asked' };
export type EnteredQueue = Of & { readonly type: 'entered'; readonly fence: string };
/** `heldMs`: when `assertHeld()` passed for the last time. */
export type LeftQueue = Of & { readonly type: 'left'; readonly heldMs: number };
export type Ended = Of & { readonly type: 'ended'; readonly end: string };
export type QueueEvent =
  | Asked
  | EnteredQueue
  | LeftQueue
  | Ended
  | { readonly type: 'unhandled'; readonly worker: number; readonly atMs: number; readonly detail: string };

/** A process that was not well. One that was killed has no end. */
export interface Trouble {
  readonly name: string;
  /** Undefined: all of them, as the server's connections were struck. */
  readonly worker: number | undefined;
  readonly fromMs: number;
  readonly toMs: number;
}

/** A time in which the server had the same live lock whenever it was looked at. A lock that is only handed over is none. */
export interface HeldTime {
  readonly key: string;
  readonly fromMs: number;
  readonly toMs: number;
}

export interface QueueHistory {
  readonly events: readonly QueueEvent[];
  readonly troubles: readonly Trouble[];
  readonly held: readonly HeldTime[];
  readonly failures: readonly string[];
}
