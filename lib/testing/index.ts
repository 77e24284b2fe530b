export { FakeClock } from './fake-clock.js';
export { SyncGuardTesting } from './syncguard-testing.js';
export { SyncGuardTestingModule, type SyncGuardTestingOptions } from './syncguard-testing.module.js';
