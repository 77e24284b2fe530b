// Tokens are made by Symbol.for, so that a CommonJS and an ES module copy of this package share them.

/** The options as the user passed them. */
export const SYNCGUARD_OPTIONS = Symbol.for('syncguard:options');
/** The options after validation, with every default filled in. */
export const RESOLVED_OPTIONS = Symbol.for('syncguard:resolved-options');
/** The connection to Redis, or undefined on the memory backend. */
export const SYNCGUARD_CONNECTION = Symbol.for('syncguard:connection');
/** The backends of all features. */
export const SYNCGUARD_BACKENDS = Symbol.for('syncguard:backends');
/** The function that reports operations to the `telemetry` listener. Undefined if no listener was set. */
export const SYNCGUARD_TELEMETRY = Symbol.for('syncguard:telemetry');
