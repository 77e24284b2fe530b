// What works without Nest too (./core): backends of locks, errors, telemetry
export * from './assembly/without-nest.js';

// Module
export { SyncGuardModule } from './module/syncguard.module.js';
export type {
  SyncGuardModuleAsyncOptions,
  SyncGuardModuleOptions,
  SyncGuardOptions,
  SyncGuardOptionsFactory,
} from './module/syncguard.options.js';
export { days, hours, minutes, seconds } from './core/time.js';
export { SyncGuardHealthIndicator, type SyncGuardHealth } from './module/syncguard.health.js';
export { SyncGuardExceptionFilter, toHttpException } from './transport/syncguard-exception.filter.js';
export { HangUp } from './transport/hang-up.decorator.js';
export { ScriptLoader } from './assembly/script-loader.js';
export type { RedisConnectionOptions } from './redis/redis.client.js';

// Locks
export { LockService } from './lock/lock.service.js';
export type { ComposableMethodDecorator, FitsNoSuchMember } from './method/replace-method.js';
export { Lock, type LockedMethodDecorator, WithLock } from './lock/with-lock.decorator.js';
export { currentLock, type LockContext } from './lock/current-lock.js';
export type {
  ContentionHandler,
  LockCallOptions,
  LockDefaults,
  LockOptions,
  OnContention,
} from './lock/lock.options.js';

// Limits
export { AbuseLimiterService } from './limit/abuse-limiter.service.js';
export { rateLimit } from './limit/route/rate-limit.middleware.js';
export { Limited, type LimitedDecision, limitedOn } from './limit/route/limited.decorator.js';
export { RateLimit, type RateLimitOptions, SkipRateLimit } from './limit/route/rate-limit.decorator.js';
export { RateLimitGuard } from './limit/route/rate-limit.guard.js';
export { normalizeAddress } from './limit/key-parts.js';
export { LimitError, TooManyAttemptsError } from './limit/limit.errors.js';
export type { LimitDefaults, LimitPolicies, RateLimitHeaders, SkipIf } from './limit/limit.options.js';
export type * from './limit/limit.types.js';
export type * from './limit/policy.types.js';
export { presets } from './limit/presets.js';

// Budgets
export { BudgetService } from './budget/budget.service.js';
export type { RunOptions } from './budget/budget.runs.js';
export type { OnThrow } from './budget/budget.settlement.js';
export { type CurrentHold, currentHold } from './budget/current-hold.js';
export {
  type BudgetedMethodDecorator,
  WithBudget,
  type WithBudgetOptions,
} from './budget/with-budget.decorator.js';
export {
  BudgetConflictError,
  BudgetExceededError,
  BudgetInputError,
  BudgetUnavailableError,
} from './budget/budget.errors.js';
export type { BudgetOptions } from './budget/budget.options.js';
export type { BudgetLimitSource } from './budget/budget.limits.js';
export type * from './budget/budget.types.js';

// Counters
export { CounterError } from './counter/counter.errors.js';
export { CounterService } from './counter/counter.service.js';
export type * from './counter/counter.types.js';

// Once
export { OnceService } from './once/once.service.js';
export { OnceError, type OnceErrorCode } from './once/once.errors.js';
export { Once } from './once/route/once.decorator.js';
export { onceKey, type OnceKeyParts } from './once/route/once-key.js';
export { currentOnce } from './once/current-once.js';
export type { OnceCaller, OnceModuleOptions } from './once/once.options.js';
export type * from './once/once.types.js';

// Secrets
export { SecretService } from './secret/secret.service.js';
export { SecretError, type SecretErrorCode } from './secret/secret.errors.js';
export type { SecretOptions } from './secret/secret.options.js';
export type * from './secret/secret.types.js';
