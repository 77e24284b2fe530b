// Entry ./core: what works without Nest. Nothing that it reaches imports Nest, not even as a type.
export * from './assembly/without-nest.js';
export { LOCK_SCRIPTS } from './assembly/lock-backends.js';
