import { randomUUID } from 'node:crypto';

const NONCE = Symbol.for('syncguard:budget-nonce');

/** Stands for a missing nonce. A call with it finds a hold, whatever nonce the hold has. */
export const ANY_NONCE = '-';

/**
 * Attaches a nonce to a result: the nonce of the call that created the hold. An id can be used again after its
 * operation was purged, and its generations start at 1 again. A very late call for the old hold then names the
 * id and the generation of a new hold. The nonce keeps such a call from settling the new hold.
 */
export function attachNonce<Hold extends object>(hold: Hold, nonce: string): Hold {
  if (nonce !== ANY_NONCE) Object.defineProperty(hold, NONCE, { value: nonce });
  return hold;
}

export const nonceOf = (hold: object): string => (hold as { [NONCE]?: string })[NONCE] ?? ANY_NONCE;

/** Returns a new random id. */
export const createId = (): string => randomUUID();
