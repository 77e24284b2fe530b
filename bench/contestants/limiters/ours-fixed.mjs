import { openApp, syncguard } from '../_app.mjs';

export default {
  name: 'nestjs-syncguard, fixed window',
  role: 'variant',
  async open({ limit }) {
    const window = { algorithm: 'fixed-window', limit, windowMs: 60_000 };
    const app = await openApp({ limits: { p: window } });
    const limiter = app.get(syncguard.AbuseLimiterService);
    return { check: async (key) => (await limiter.check(key, 'p')).allowed };
  },
};
