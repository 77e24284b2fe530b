import { isOwed } from '../core/errors.js';
import { pause } from '../core/pause.js';
import { randomId } from '../core/random-id.js';
import { refuseAborted } from '../core/validate.js';
import type { WaitingRoom } from '../core/waiting-room.js';
import type { Claim, ClaimReply, OnceBackend } from './once.backend.js';
import { OnceError, shuttingDown } from './once.errors.js';
import type { OnceCall } from './once.options.js';

/** A claim, and when it was sent, as `performance.now()` counts. */
export interface SentClaim extends Claim {
  readonly sentMs: number;
}

/** Its nonce is new for each attempt, so that undoing one whose answer came late does not end a later one. */
export function claimOf({ key, print, options }: OnceCall, waiter = '-', waitMs = 0): SentClaim {
  const { keepMs, afterCrash, maxRunMs } = options;
  const leaseMs = Math.min(options.leaseMs, maxRunMs);
  const sentMs = performance.now();
  return { key, nonce: randomId(), print, leaseMs, keepMs, afterCrash, waiter, waitMs, sentMs };
}

/**
 * Claims the key of a call until the answer is not `busy`, or `waitMs` is over. Resolves to the last claim.
 *
 * @param closing - aborts when the app shuts down, which ends the wait
 */
export async function claimInTurn(
  backend: OnceBackend,
  room: WaitingRoom,
  call: OnceCall,
  closing: AbortSignal,
): Promise<{ claim: SentClaim; reply: ClaimReply }> {
  const { key, signal } = call;
  const waiter = randomId();
  const endMs = performance.now() + call.options.waitMs;
  let turnMs: number | undefined;
  let fault: unknown;
  // An end that is told between two pauses ends the next one.
  let isTold = false;
  let endPause = (): void => {};
  const stop = backend.onEnd(key, () => {
    isTold = true;
    endPause();
  });
  room.enter([key]);
  try {
    for (;;) {
      const leftMs = Math.max(0, Math.ceil(endMs - performance.now()));
      try {
        // A server that owes the answer to the last attempt gets no further one.
        if (!isOwed(fault)) {
          const claim = claimOf(call, waiter, leftMs);
          const reply = await backend.claim(claim, call);
          if (reply.status !== 'busy' || leftMs === 0) return { claim, reply };
          turnMs = reply.remainingMs + 1;
          fault = undefined;
        }
      } catch (error) {
        // A call that has begun to wait waits on through an outage.
        if (turnMs === undefined || OnceError.from(error).code === 'Aborted') throw error;
        fault = error;
      }
      if (leftMs === 0) throw fault as Error;
      const pauseMs = Math.min(backend.pollMs, turnMs ?? Infinity, leftMs);
      if (!isTold) await pause(pauseMs, { signals: [signal, closing], onBegin: (end) => (endPause = end) });
      isTold = false;
      if (closing.aborted) throw shuttingDown();
      refuseAborted(signal, OnceError);
    }
  } finally {
    room.leave([key]);
    stop();
  }
}
