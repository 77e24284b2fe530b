// What is usually written: SET NX, and GET where it was there. No payload, no fence, and a crash keeps the key taken.
import { connect } from '../../harness/redis.mjs';

export default {
  name: 'hand-written SET NX + GET',
  async open() {
    const redis = connect();
    const call = async (key, body) => {
      const name = `h:${key}`;
      if ((await redis.set(name, 'running', 'PX', 30_000, 'NX')) !== 'OK') {
        const found = await redis.get(name);
        if (found === 'running') throw new Error('409');
        return JSON.parse(found);
      }
      const value = await body();
      await redis.set(name, JSON.stringify(value), 'PX', 86_400_000);
      return value;
    };
    return { run: call, replay: call };
  },
};
