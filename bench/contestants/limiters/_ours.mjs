import { openApp, syncguard } from '../_app.mjs';

export const ours = (name, role, { redis, denyCacheMs } = {}) => ({
  name,
  role,
  async open({ limit }) {
    const app = await openApp({
      ...(redis && { redis: redis() }),
      limit: { denyCacheMs },
      limits: {
        p: {
          temp: { windowMs: 60_000, threshold: Math.min(limit, 10_000), blockMs: 60_000 },
          long: { windowMs: 600_000, threshold: Math.min(limit * 5, 10_000), blockMs: 600_000 },
        },
      },
    });
    const limiter = app.get(syncguard.AbuseLimiterService);
    return { check: async (key) => (await limiter.check(key, 'p')).allowed };
  },
});
