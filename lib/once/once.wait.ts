import { randomUUID } from 'node:crypto';
import { isOwed } from '../core/errors.js';
import { pause } from '../core/pause.js';
import { refuseAborted } from '../core/validate.js';
import type { WaitingRoom } from '../core/waiting-room.js';
import type { ClaimReply, OnceBackend } from './once.backend.js';
import { OnceError, shuttingDown } from './once.errors.js';
import type { OnceCall } from './once.options.js';

export interface ClaimAttempt {
  readonly reply: ClaimReply;
  readonly nonce: string;
  /** When it was sent, as `performance.now()` counts. */
  readonly sentMs: number;
}

/**
 * Claims the key of a call. Resolves to the last attempt: the one that was not `busy`, or that came when `waitMs` was over.
 *
 * @param closing - aborts when the app shuts down, which ends the wait
 */
export async function claimOf(
  backend: OnceBackend,
  room: WaitingRoom,
  call: OnceCall,
  closing: AbortSignal,
): Promise<ClaimAttempt> {
  const { key } = call;
  if (call.options.waitMs === 0 || room.isFull || room.isFullFor([key]))
    return attempt(backend, call, '-', 0);
  const ends = new Ends();
  const stop = backend.onEnd(key, () => ends.tell());
  room.enter([key]);
  try {
    return await waitFor(backend, call, ends, closing);
  } finally {
    room.leave([key]);
    stop();
  }
}

async function waitFor(
  backend: OnceBackend,
  call: OnceCall,
  ends: Ends,
  closing: AbortSignal,
): Promise<ClaimAttempt> {
  const waiter = randomUUID();
  const endMs = performance.now() + call.options.waitMs;
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
    await ends.pause(Math.min(backend.pollMs, turnMs, leftMs), [call.signal, closing]);
    if (closing.aborted) throw shuttingDown();
    refuseAborted(call.signal, OnceError);
  }
}

async function attempt(
  backend: OnceBackend,
  { key, print, signal, options }: OnceCall,
  waiter: string,
  waitMs: number,
): Promise<ClaimAttempt> {
  const { keepMs, afterCrash } = options;
  const leaseMs = Math.min(options.leaseMs, options.maxRunMs);
  // A new one for each attempt, so that undoing one whose answer came late does not end a later one.
  const nonce = randomUUID();
  const sentMs = performance.now();
  const claim = { key, nonce, print, leaseMs, keepMs, afterCrash, waiter, waitMs };
  return { reply: await backend.claim(claim, { signal }), nonce, sentMs };
}

/** The pauses of one call. An end that is told between two pauses ends the next one. */
class Ends {
  #isTold = false;
  #end: (() => void) | undefined;

  tell(): void {
    this.#isTold = true;
    this.#end?.();
  }

  async pause(ms: number, signals: readonly (AbortSignal | undefined)[]): Promise<void> {
    if (!this.#isTold) await pause(ms, { signals, onBegin: (end) => (this.#end = end) });
    this.#isTold = false;
    this.#end = undefined;
  }
}
