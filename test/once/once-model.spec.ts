import { describeModel } from './once.model.js';

// More steps: test/chaos/once-model.suite.ts.
describeModel(Number(process.env.ONCE_STEPS ?? 6_000));
