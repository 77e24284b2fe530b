import rolling from 'rolling-rate-limiter';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'rolling-rate-limiter 0.4',
  async open({ limit }) {
    const limiter = new rolling.IORedisRateLimiter({
      client: connect(),
      namespace: 'ro:',
      interval: 60_000,
      maxInInterval: limit,
    });
    return { check: async (key) => !(await limiter.limit(key)) };
  },
};
