import { randomUUID } from 'node:crypto';
import { offAbort, onAbort } from '../core/abort-listeners.js';
import { isOwed } from '../core/errors.js';
import { refuseAborted } from '../core/validate.js';
import type { WaitingRoom } from '../core/waiting-room.js';
import type { ClaimReply, OnceBackend } from './once.backend.js';
import { OnceError } from './once.errors.js';
import type { OnceCall } from './once.options.js';

export interface ClaimAttempt {
  readonly reply: ClaimReply;
  readonly nonce: string;
  /** When it was sent, as `performance.now()` counts. */
  readonly sentMs: number;
}

/** Claims the key of a call. Resolves to the last attempt: the one that was not `busy`, or that came when `waitMs` was over. */
export async function claimOf(
  backend: OnceBackend,
  room: WaitingRoom,
  call: OnceCall,
): Promise<ClaimAttempt> {
  const { key, waitMs } = call;
  if (waitMs === 0 || room.isFull || room.isFullFor([key])) return attempt(backend, call, '-', 0);
  const pause = new Pause(call.signal);
  const stop = backend.onEnd(key, () => pause.end());
  room.enter([key]);
  try {
    return await waitFor(backend, call, pause);
  } finally {
    room.leave([key]);
    stop();
  }
}

async function waitFor(backend: OnceBackend, call: OnceCall, pause: Pause): Promise<ClaimAttempt> {
  const waiter = randomUUID();
  const endMs = performance.now() + call.waitMs;
  let last: ClaimAttempt | undefined;
  let fault: unknown;
  for (;;) {
    const leftMs = Math.max(0, Math.ceil(endMs - performance.now()));
    try {
      // A server that owes the answer to the last attempt gets no further one.
      if (!isOwed(fault)) last = await attempt(backend, call, waiter, leftMs);
      fault = undefined;
    } catch (error) {
      // A call that has begun to wait waits on through an outage.
      if (!last || leftMs === 0 || OnceError.from(error).code === 'Aborted') throw error;
      fault = error;
    }
    if (fault === undefined && last?.reply.status !== 'busy') return last as ClaimAttempt;
    if (leftMs === 0) {
      if (fault !== undefined) throw fault as Error;
      return last as ClaimAttempt;
    }
    const turnMs = last?.reply.status === 'busy' ? last.reply.remainingMs + 1 : Infinity;
    await pause.begin(Math.min(backend.pollMs, turnMs, leftMs));
  }
}

async function attempt(
  backend: OnceBackend,
  { key, print, leaseMs, keepMs, afterCrash, maxRunMs, signal }: OnceCall,
  waiter: string,
  waitMs: number,
): Promise<ClaimAttempt> {
  // A new one for each attempt, so that undoing one whose answer came late does not end a later one.
  const nonce = randomUUID();
  const sentMs = performance.now();
  const lease = { leaseMs: Math.min(leaseMs, maxRunMs), keepMs, afterCrash };
  return {
    reply: await backend.claim({ key, nonce, print, ...lease, waiter, waitMs }, { signal }),
    nonce,
    sentMs,
  };
}

/** The pauses of one call. An end that is told between two pauses ends the next one. */
class Pause {
  #isOver = false;
  #resolve: (() => void) | undefined;

  constructor(private readonly signal: AbortSignal | undefined) {}

  end(): void {
    this.#isOver = true;
    this.#resolve?.();
  }

  async begin(ms: number): Promise<void> {
    const { signal } = this;
    const listener = { handleEvent: () => this.end() };
    if (signal) onAbort(signal, listener);
    if (!this.#isOver)
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, ms);
        this.#resolve = () => (clearTimeout(timer), resolve());
      });
    this.#isOver = false;
    this.#resolve = undefined;
    if (signal) offAbort(signal, listener);
    refuseAborted(signal, OnceError);
  }
}
