import { describeForcedReleases } from '../lock/lock-forced.model.js';

jest.setTimeout(1_800_000);
describeForcedReleases(Number(process.env.FORCED_NIGHTS ?? 2_000));
