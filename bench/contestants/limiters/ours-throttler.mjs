import { openApp, syncguard } from '../_app.mjs';

const { SyncGuardThrottlerStorage } = await import(
  `${process.env.BENCH_PACKAGE ?? 'nestjs-syncguard'}/throttler`
);

export default {
  name: 'nestjs-syncguard, storage for throttler',
  role: 'variant',
  async open({ limit }) {
    const app = await openApp();
    const storage = new SyncGuardThrottlerStorage(app.get(syncguard.AbuseLimiterService));
    return {
      check: async (key) => !(await storage.increment(key, 60_000, limit, 60_000, 'default')).isBlocked,
    };
  },
};
