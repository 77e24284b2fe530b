import type { LimitCounts } from '../limit.backend.js';
import type { LimitScope } from '../limit.types.js';
import { AttemptLog } from './attempt-log.js';

export interface Block extends LimitCounts {
  readonly scope: LimitScope;
  readonly reason: string;
  readonly endsAtMs: number;
}

/** What blocks leave behind: check.script.ts says what floors, strikes and `struckBy` are. */
export const NO_PENALTIES = {
  endsAtMs: 0,
  /** Of each tier. */
  floorsMs: [0, 0] as readonly [number, number],
  strikes: [0, 0] as readonly [number, number],
  struckBy: '',
};

/** The count of a policy with `algorithm: 'fixed-window'`. */
interface Window {
  readonly count: number;
  readonly endsAtMs: number;
}

interface Flight {
  beganMs: number;
  renewedMs: number;
  readonly cost: number;
}

/** What is kept of one identity. */
export class Ledger {
  readonly attempts = new AttemptLog();
  readonly inFlight = new Map<string, Flight>();
  /** When all attempts and calls in flight are forgotten. */
  endsAtMs = 0;
  block: Block | undefined;
  penalties = NO_PENALTIES;
  lastForgiven: string | undefined;
  window: Window | undefined;

  /**
   * Drops everything that is over. As in Redis, this is one millisecond after each `endsAtMs`, although a block or a
   * window has no effect from `endsAtMs` on. A fixed window and the block before it are one key there.
   */
  tidy(nowMs: number): this {
    if (nowMs > Math.max(this.block?.endsAtMs ?? 0, this.window?.endsAtMs ?? 0))
      this.block = this.window = undefined;
    if (nowMs > this.penalties.endsAtMs) this.penalties = NO_PENALTIES;
    if (nowMs > this.endsAtMs) {
      this.attempts.clear();
      this.inFlight.clear();
    }
    return this;
  }

  isEmpty(): boolean {
    return (
      !this.block &&
      !this.window &&
      this.penalties === NO_PENALTIES &&
      this.attempts.length === 0 &&
      this.inFlight.size === 0
    );
  }

  /** At `endsAtMs` the block has ended, so a client that waits exactly as long is let in. */
  liveBlock(nowMs: number): Block | undefined {
    return this.block && nowMs < this.block.endsAtMs ? this.block : undefined;
  }

  openWindow(nowMs: number): Window | undefined {
    return this.window && nowMs < this.window.endsAtMs ? this.window : undefined;
  }

  /** The newest floor. */
  get floorMs(): number {
    const [short, long] = this.penalties.floorsMs;
    return Math.max(short, long);
  }

  knows(callId: string): boolean {
    return this.inFlight.has(callId) || this.attempts.has(callId);
  }

  inFlightCost(): number {
    let sum = 0;
    for (const { cost } of this.inFlight.values()) sum += cost;
    return sum;
  }
}
