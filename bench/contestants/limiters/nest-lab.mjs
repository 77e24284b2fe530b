import 'reflect-metadata';
import { ThrottlerStorageRedisService } from '@nest-lab/throttler-storage-redis';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'nest-lab storage 1.2',
  async open({ limit }) {
    const storage = new ThrottlerStorageRedisService(connect());
    return {
      check: async (key) => !(await storage.increment(key, 60_000, limit, 60_000, 'default')).isBlocked,
    };
  },
};
