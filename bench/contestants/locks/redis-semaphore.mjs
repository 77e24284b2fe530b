import { Mutex } from 'redis-semaphore';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'redis-semaphore 5.8',
  async open() {
    const redis = connect();
    const acquire = async (key, options) => {
      const mutex = new Mutex(redis, key, { lockTimeout: 30_000, acquireTimeout: 30_000, ...options });
      await mutex.acquire();
      return mutex;
    };
    return {
      acquire: (key) => acquire(key, { refreshInterval: 0 }),
      release: (mutex) => mutex.release(),
      /** It renews by default. */
      async withLock(key, fn) {
        const mutex = await acquire(key);
        try {
          return await fn();
        } finally {
          await mutex.release();
        }
      },
    };
  },
};
