import { createLock, IoredisAdapter } from 'redlock-universal';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'redlock-universal 0.8',
  async open() {
    const adapter = new IoredisAdapter(connect());
    return {
      async acquire(key) {
        const lock = createLock({ adapter, key: `ru:${key}`, ttl: 30_000 });
        return { lock, handle: await lock.acquire() };
      },
      release: ({ lock, handle }) => lock.release(handle),
    };
  },
};
