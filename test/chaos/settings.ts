// What workers and checker both know.

export const KEY_PREFIX = 'chaos';
export const COMMAND_TIMEOUT_MS = 500;

/** Roots, secrets and counters are new in each epoch: what a lossy fault spoils is spoilt for a while only. */
export const EPOCH_MS = 5_000;
/** After its end, until everything of it is over, unless a fault holds it up. */
export const AUDIT_AFTER_MS = 4_500;

export const LOCK = { ttlMs: 1_500, timeoutMs: 2_000, longestBodyMs: 2_500 };
/** Locks that only one worker ever asks for: what stands of them afterwards was forgotten. */
export const HOLD_TTL_MS = 60_000;

export const BUDGET = { limit: 600, ttlMs: 2_500 };
export const VIEWS = 40;
export const RATE = { limit: 20, windowMs: 1_000 };
export const COUNTER_MAX = 60;
/** Each `slotMs` other keys are asked for, and those of the last `slotsBack` slots now and then. */
export const ONCE = {
  ...{ leaseMs: 1_000, keepMs: 60_000, waitMs: 1_500, longestBodyMs: 2_500 },
  ...{ slotMs: 150, slotsBack: 30 },
};
