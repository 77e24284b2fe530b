import type { WatchedResponse } from '../core/current-response.js';

/** The most bytes of a file that are handed on at a time. */
export const CHUNK_BYTES = 65_536;

const LOOKS = 4;
const LOOK_EVERY_MS = 250;
/** No more than so many times the pause between two looks counts at a time. */
const MOST_LATE = 2;

/** What to do about a stream that nobody reads. */
export interface Idle {
  readonly ms: number;
  /** Ends the lock or the hold around the stream. Returns the error for whoever reads later. */
  end(): Error;
}

/**
 * Notices a reader that has left without a word: something was handed on, and for `idle.ms` nobody asks for more. That the
 * next item takes its time is no reason. Time counts from look to look, and little of it where a look comes very late, so a
 * process that stood still blames no reader.
 */
export class ReaderWatch {
  readonly #everyMs: number;
  readonly #idleMs: number;
  readonly #timer: NodeJS.Timeout;
  #mostMs: number;
  #leftMs: number;
  #lookedMs = performance.now();
  #isWaiting = false;

  /**
   * @param response - with it, only a client that lets the response fill up has left. A handler may do other work
   *   between two items.
   */
  constructor(
    idle: Idle,
    private readonly onIdle: (reason: Error) => void,
    private readonly response?: WatchedResponse,
  ) {
    this.#everyMs = Math.min(LOOK_EVERY_MS, Math.max(1, idle.ms / LOOKS));
    // The first look may come at once.
    this.#idleMs = this.#mostMs = this.#leftMs = idle.ms + this.#everyMs;
    this.#timer = setInterval(() => this.#look(idle), this.#everyMs).unref();
    response?.on('drain', this.#progressed);
  }

  /** Something was handed on. A large item may take its time to leave: it has `idle.ms` for each chunk that it would make. */
  handedOn(item?: unknown): void {
    this.#isWaiting = true;
    this.#mostMs = this.#leftMs = this.#idleMs * Math.max(1, Math.ceil(bytesOf(item) / CHUNK_BYTES));
  }

  /** The reader asks for more. */
  asked(): void {
    this.#isWaiting = false;
  }

  end(): void {
    clearInterval(this.#timer);
    this.response?.off('drain', this.#progressed);
  }

  #look(idle: Idle): void {
    const nowMs = performance.now();
    const passedMs = Math.min(nowMs - this.#lookedMs, MOST_LATE * this.#everyMs);
    this.#lookedMs = nowMs;
    if (!this.#isWaiting) return;
    if (this.response && !isFull(this.response)) return this.#progressed();
    this.#leftMs -= passedMs;
    if (this.#leftMs > 0) return;
    this.end();
    const reason = idle.end();
    reasons.add(reason);
    this.onIdle(reason);
  }

  readonly #progressed = (): void => {
    this.#leftMs = this.#mostMs;
  };
}

const reasons = new WeakSet<object>();

/** Returns whether a stream has ended because nobody reads it, which every lock and hold around it must be told. */
export const isIdle = (error: unknown): boolean => reasons.has(Object(error) as object);

const isFull = ({ stream, writableNeedDrain }: WatchedResponse): boolean =>
  (stream ? stream.writableNeedDrain : writableNeedDrain) === true;

const bytesOf = (item: unknown): number =>
  typeof item === 'string' ? item.length : ArrayBuffer.isView(item) ? item.byteLength : 0;
