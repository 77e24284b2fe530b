import { Mutex } from 'redis-semaphore';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'redis-semaphore 5.8',
  async open() {
    const redis = connect();
    return {
      async acquire(key) {
        const mutex = new Mutex(redis, key, { lockTimeout: 30_000, acquireTimeout: 30_000 });
        await mutex.acquire();
        return mutex;
      },
      release: (mutex) => mutex.release(),
    };
  },
};
