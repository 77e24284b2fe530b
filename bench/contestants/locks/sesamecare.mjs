import { Redlock } from '@sesamecare-oss/redlock';
import { connect } from '../../harness/redis.mjs';

export default {
  name: '@sesamecare-oss/redlock 1.4',
  async open() {
    const redlock = new Redlock([connect()]);
    return {
      acquire: (key) => redlock.acquire([`se:${key}`], 30_000),
      release: (lock) => lock.release(),
      withLock: (key, fn) => redlock.using([`se:${key}`], 30_000, async () => fn()),
    };
  },
};
