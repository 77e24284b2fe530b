// The other usual way: a lock around reading and writing.
import Redlock from 'redlock';
import { connect } from '../../harness/redis.mjs';

const LIMIT = 1e12;

export default {
  name: 'redlock 5 around HMGET/HSET',
  async open() {
    const redis = connect();
    const redlock = new Redlock([redis], { retryCount: -1, retryDelay: 5, retryJitter: 2 });
    const update = async (key, change) => {
      const lock = await redlock.acquire([`${key}:l`], 30_000);
      try {
        const next = change((await redis.hmget(key, 'used', 'held')).map((value) => Number(value ?? 0)));
        if (next) await redis.hset(key, 'used', next[0], 'held', next[1]);
        return next !== undefined;
      } finally {
        await lock.release();
      }
    };
    return {
      async spend(name, amount) {
        const key = `bl:${name}`;
        const reserved = await update(key, ([used, held]) =>
          used + held + amount > LIMIT ? undefined : [used, held + amount],
        );
        return reserved && update(key, ([used, held]) => [used + amount, held - amount]);
      },
      used: async (name) => Number((await redis.hget(`bl:${name}`, 'used')) ?? 0),
    };
  },
};
