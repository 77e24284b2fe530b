import { randomUUID } from 'node:crypto';

const NONCE = Symbol.for('syncguard:budget-nonce');

/** Accepts the nonce of any call. */
export const ANY_NONCE = '-';

/**
 * Attaches the nonce of the call that created a hold to a result. Generations start at 1 again once an id was
 * purged. The nonce keeps a very late call from taking the hold that has the id now for its own.
 */
export function attachNonce<Hold extends object>(hold: Hold, nonce: string): Hold {
  if (nonce !== ANY_NONCE) Object.defineProperty(hold, NONCE, { value: nonce });
  return hold;
}

export const nonceOf = (hold: object): string => (hold as { [NONCE]?: string })[NONCE] ?? ANY_NONCE;

/** Returns a new random id. */
export const createId = (): string => randomUUID();
