// Tokens go by Symbol.for, so that a CommonJS and an ES module copy of this package mean the same ones.

/** The options as the user gave them. */
export const SYNCGUARD_OPTIONS = Symbol.for('syncguard:options');
/** The options checked and with every default filled in. */
export const RESOLVED_OPTIONS = Symbol.for('syncguard:resolved-options');
/** The connection to Redis, or undefined on the memory backend. */
export const SYNCGUARD_CONNECTION = Symbol.for('syncguard:connection');
/** The backends of all features. */
export const SYNCGUARD_BACKENDS = Symbol.for('syncguard:backends');
/** What tells the listener of the `telemetry` option of operations; undefined: there is none. */
export const SYNCGUARD_TELEMETRY = Symbol.for('syncguard:telemetry');
/** The LockService, for @WithLock. */
export const LOCK_SERVICE = Symbol.for('syncguard:LockService (is SyncGuardModule.forRoot() imported?)');
/** The BudgetService, for @WithBudget. */
export const BUDGET_SERVICE = Symbol.for('syncguard:BudgetService (is SyncGuardModule.forRoot() imported?)');

/** Metadata: the index of the parameter that @Lock() marks. */
export const LOCK_PARAMETER = Symbol.for('syncguard:lock-parameter');
/** The longest `Retry-After`: for the filter, also where an app binds it itself. */
export const MAX_RETRY_AFTER_MS = Symbol.for('syncguard:maxRetryAfterMs');
