// Entry ./core: what works without Nest. Nothing that it reaches imports Nest, not even as a type.

// Backends of locks
export {
  createMemoryBackend,
  createRedisBackend,
  LOCK_SCRIPTS,
  type RedisBackendConfig,
} from './assembly/lock-backends.js';
export type { CallOptions } from './core/validate.js';
export type { LockBackend } from './lock/lock.backend.js';
export { createFenceGuard, type FenceGuardConfig } from './assembly/fence-guards.js';
export { FenceGuard } from './lock/fence-guard.js';
export type { FencedValue, FencedWrite, FenceResult } from './lock/fence.types.js';
export type * from './lock/lock.types.js';
export { leaveReplica } from './redis/leave-replica.js';
export type { EvalClient, IoredisClient } from './redis/redis.client.js';
export type { Clock } from './core/clock.js';

// Errors
export { LockError, type LockErrorCode } from './lock/lock.errors.js';
export {
  type BootCode,
  type FaultCode,
  SyncGuardConfigError,
  type SyncGuardConfigErrorInit,
  SyncGuardError,
  type SyncGuardErrorInit,
} from './core/errors.js';

// Telemetry
export { withTelemetry } from './assembly/observed-locks.js';
export type { TelemetryOptions } from './telemetry/telemetry.options.js';
export type {
  BudgetEvent,
  LimitEvent,
  LockEvent,
  SecretEvent,
  SyncGuardEvent,
  SyncGuardEventOf,
  ThresholdEvent,
  ThresholdPeriod,
} from './telemetry/telemetry.types.js';
export { hashKey } from './core/keys.js';
