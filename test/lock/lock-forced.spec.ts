import { describeForcedReleases } from './lock-forced.model.js';

// More nights: test/chaos/lock-forced.suite.ts.
describeForcedReleases(Number(process.env.FORCED_NIGHTS ?? 150));
