import Redlock from 'redlock';
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'redlock 5 beta',
  async open() {
    const redlock = new Redlock([connect()]);
    return {
      acquire: (key) => redlock.acquire([`r5:${key}`], 30_000),
      release: (lock) => lock.release(),
      withLock: (key, fn) => redlock.using([`r5:${key}`], 30_000, async () => fn()),
    };
  },
};
