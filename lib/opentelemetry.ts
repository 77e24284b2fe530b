// Entry ./opentelemetry: metrics and spans for @opentelemetry/api. Nothing else of the package loads it.
export { instrument, type InstrumentOptions } from './telemetry/opentelemetry.js';
