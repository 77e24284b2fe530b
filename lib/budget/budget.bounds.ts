// What options, results and both backends are bound by.

/** The largest amount, and the largest sum of amounts: 2^53 - 1. */
export const MAX_AMOUNT = Number.MAX_SAFE_INTEGER;

/** How long an id of a lifetime limit is kept. Longer than the time in which a card payment may be charged back. */
export const LIFETIME_IDS_MS = 400 * 86_400_000;

/** Stands for a missing nonce. A call with it finds a hold, whatever nonce the hold has. */
export const ANY_NONCE = '-';
