// Entry ./throttler: a storage for @nestjs/throttler. It imports nothing of that package, whose types it fits.
export { SyncGuardThrottlerStorage, type ThrottlerRecord } from './limit/throttler-storage.js';
