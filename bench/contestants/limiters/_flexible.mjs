import flexible from 'rate-limiter-flexible';
import { connect } from '../../harness/redis.mjs';

export const rateLimiterFlexible = (name, keyPrefix, extra, role) => ({
  name,
  role,
  async open({ limit }) {
    const limiter = new flexible.RateLimiterRedis({
      storeClient: connect(),
      points: limit,
      duration: 60,
      blockDuration: 60,
      keyPrefix,
      ...extra(limit),
    });
    return {
      async check(key) {
        try {
          await limiter.consume(key);
          return true;
        } catch (error) {
          if (error instanceof Error) throw error;
          return false;
        }
      },
    };
  },
});
