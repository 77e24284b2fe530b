import type { CallOptions } from '../core/validate.js';
import type { CounterResult } from './counter.types.js';

export interface CounterCall {
  readonly key: string;
  readonly max: number;
  readonly windowMs: number;
  readonly cost: number;
  /** The id that the app passed for this call, or a random one. A call that is sent twice counts once. */
  readonly callId: string;
  /** Whether the callId is kept until the window ends. Otherwise it is kept until the next call is counted. */
  readonly remember: boolean;
}

export type CounterReply = Omit<CounterResult, 'remaining'>;

/** The port of counters. Each method is one atomic step. */
export interface CounterBackend {
  increment(call: CounterCall, options: CallOptions): Promise<CounterReply>;
  peek(key: string, options: CallOptions): Promise<Omit<CounterReply, 'ok'>>;
  reset(key: string, options: CallOptions): Promise<void>;
}
