// Tokens are made by Symbol.for, so that a CommonJS and an ES module copy of this package share them.

/** The options as the user passed them. */
export const SYNCGUARD_OPTIONS = Symbol.for('syncguard:options');
/** The options after validation, with every default filled in. */
export const RESOLVED_OPTIONS = Symbol.for('syncguard:resolved-options');
/** The connection to Redis, or undefined on the memory backend. */
export const SYNCGUARD_CONNECTION = Symbol.for('syncguard:connection');
/** The backends of all features. */
export const SYNCGUARD_BACKENDS = Symbol.for('syncguard:backends');
/** The function that reports operations to the `telemetry` listener. Undefined where no listener was set. */
export const SYNCGUARD_TELEMETRY = Symbol.for('syncguard:telemetry');
/** The LockService that `@WithLock()` uses. */
export const LOCK_SERVICE = Symbol.for('syncguard:LockService (is SyncGuardModule.forRoot() imported?)');
/** The BudgetService that `@WithBudget()` uses. */
export const BUDGET_SERVICE = Symbol.for('syncguard:BudgetService (is SyncGuardModule.forRoot() imported?)');

/** Metadata: the index of the parameter that `@Lock()` marks. */
export const LOCK_PARAMETER = Symbol.for('syncguard:lock-parameter');
/** The longest `Retry-After` in ms. The filter reads it, also where an app binds the filter itself. */
export const MAX_RETRY_AFTER_MS = Symbol.for('syncguard:maxRetryAfterMs');
