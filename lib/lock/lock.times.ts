/** How long a waiter has to take a lock that was handed over to it, in ms. */
export const CLAIM_MS = 500;

/** How long a call for several keys keeps the keys that it has claimed, in ms. Each further attempt renews this time. */
export const KEEP_MS = 1_000;

/** The pause between two attempts of a waiter that keeps claimed keys, in ms. Each attempt renews these before they expire. */
export const KEEPING_LOOK_MS = 400;
