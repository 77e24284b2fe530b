// The base, the least that it can be: one command to take the key, one to store the result, one to read it.
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'raw SET NX, SET; GET',
  role: 'base',
  async open() {
    const redis = connect();
    return {
      async run(key, body) {
        if ((await redis.set(`r:${key}`, 'running', 'PX', 30_000, 'NX')) !== 'OK') throw new Error('taken');
        const value = await body();
        await redis.set(`r:${key}`, JSON.stringify(value), 'PX', 86_400_000);
        return value;
      },
      replay: async (key) => JSON.parse(await redis.get(`r:${key}`)),
    };
  },
};
