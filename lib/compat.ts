// Entry ./compat: the functions for programs that share Redis keys with other SyncGuard programs. See
// docs/wire-format.md. It works without Nest, as ./core does.

// Keys and time
export { makeStorageKey } from './redis/redis.keys.js';
export { calculateRedisServerTimeMs, isLive, TIME_TOLERANCE_MS } from './core/clock.js';

// Locks
export { expectFence, FENCE_THRESHOLDS, formatFence, owns } from './lock/lock.record.js';
export type { CallOptions } from './core/validate.js';
export type { Page, PageOptions } from './core/page.js';
export type { Peers } from './core/peers.js';
export type { ByHand } from './telemetry/by-hand.js';
export type { LockBackend } from './lock/lock.backend.js';
export type * from './lock/lock.types.js';

// Replies of the scripts of budgets
export { parseBudgetResult, parseFinalizeResult } from './budget/redis/budget.replies.js';
export type { ReplyContext } from './budget/budget.results.js';
export type { AlreadyRunning, ReserveOutcome } from './budget/budget.backend.js';
export type * from './budget/budget.types.js';

// Secrets as JSON documents, and counters as plain numbers
export {
  ATOMIC_DECREMENT_SCRIPT,
  ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT,
  type DecrementResult,
  type InvalidResultCode,
  InvalidResultError,
  parseDecrementResult,
  parseIncrementResult,
} from './secret/secret.compat.js';
export { SyncGuardError, type SyncGuardErrorInit } from './core/errors.js';
