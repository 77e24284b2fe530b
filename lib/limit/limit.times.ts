/** How long a call is in flight without a renewal, in ms. After that its process is assumed to be dead. */
export const IN_FLIGHT_MS = 60_000;
/** The wait of a call that is denied because calls in flight take up the rest, in ms. */
export const BUSY_RETRY_MS = 1_000;
/** How much longer than its window an attempt is kept, in case the clock steps: so many windows, and at most so many ms. */
export const SLACK_WINDOWS = 2;
export const MAX_SLACK_MS = 60_000;
