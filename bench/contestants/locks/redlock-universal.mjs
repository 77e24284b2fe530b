import { createLock, IoredisAdapter } from 'redlock-universal';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'redlock-universal 0.8',
  async open() {
    const adapter = new IoredisAdapter(connect());
    const lockOf = (key) => createLock({ adapter, key: `ru:${key}`, ttl: 30_000 });
    return {
      async acquire(key) {
        const lock = lockOf(key);
        return { lock, handle: await lock.acquire() };
      },
      release: ({ lock, handle }) => lock.release(handle),
      withLock: (key, fn) => lockOf(key).using(async () => fn()),
    };
  },
};
