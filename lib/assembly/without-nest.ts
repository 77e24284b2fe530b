// What the entries `.` and `./core` share: it works without Nest.

// Backends of locks
export {
  createFenceGuard,
  createMemoryBackend,
  createRedisBackend,
  type FenceGuardConfig,
  type RedisBackendConfig,
} from './lock-backends.js';
export type { CallOptions } from '../core/validate.js';
export type { Page, PageOptions } from '../core/page.js';
export type { Peers } from '../core/peers.js';
export type { ByHand } from '../telemetry/by-hand.js';
export type { LockBackend } from '../lock/lock.backend.js';
export { FenceGuard } from '../lock/fence-guard.js';
export { lockKey } from '../lock/key-template.js';
export type { FencedValue, FencedWrite, FenceResult } from '../lock/fence.backend.js';
export type * from '../lock/lock.types.js';
export { leaveReplica } from '../redis/leave-replica.js';
export type { EvalClient, IoredisClient } from '../redis/redis.client.js';
export type { Clock } from '../core/clock.js';

// Errors
export { LockError, type LockErrorCode } from '../lock/lock.errors.js';
export {
  type BootCode,
  type FaultCode,
  SyncGuardConfigError,
  type SyncGuardConfigErrorInit,
  SyncGuardError,
  type SyncGuardErrorInit,
} from '../core/errors.js';

// Telemetry
export { withTelemetry } from './observed-locks.js';
export type { TelemetryOptions } from '../telemetry/telemetry.options.js';
export type {
  BudgetEvent,
  ForcedEvent,
  ForcedOperation,
  LimitEvent,
  LockEvent,
  OnceEvent,
  SecretEvent,
  SpendingEvent,
  SyncGuardEvent,
  SyncGuardEventOf,
  ThresholdEvent,
  ThresholdPeriod,
} from '../telemetry/telemetry.types.js';
export { hashKey } from '../core/keys.js';
