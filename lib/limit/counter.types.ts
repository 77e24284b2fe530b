interface Signalled {
  signal?: AbortSignal | undefined;
}

export interface IncrementOptions extends Signalled {
  /** The count never passes it. An integer from 0 to 2^53 - 1. */
  max: number;
  /** How long a count stands, from its first increment, in ms, 1 to 10 years. */
  windowMs: number;
  /** How much this call counts, all or nothing. An integer of at least 1. Default: 1. */
  cost?: number;
  /**
   * Names this call, 1 to 512 UTF-8 bytes: again with the same id in the same window it gets the first answer
   * and counts nothing. Each id is kept until the window ends. Default: none; then only a command that the
   * Redis client itself sends again is known, and only while no other call has come between.
   */
  id?: string;
}

export interface PeekCounterOptions extends Signalled {
  /** To be told what remains. */
  max?: number;
}

export interface CounterResult {
  /** Whether the call was counted. */
  readonly ok: boolean;
  readonly count: number;
  /** Until `max`. */
  readonly remaining: number;
  /** Until the count starts at 0 again, in ms; 0: it stands at 0. */
  readonly resetMs: number;
}

export interface CounterState {
  readonly count: number;
  readonly resetMs: number;
  /** Until `max`, if that was given. */
  readonly remaining?: number;
}
