/** After a run has failed, how long its longest waiter has to take its turn, in ms. Then the next one has the same time. */
export const TURN_MS = 500;
