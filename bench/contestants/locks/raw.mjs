// C, the base: the least that a lock can be. SET NX PX and compare-and-delete, no fence, no queue.
import { randomUUID } from 'node:crypto';
import { connect } from '../../harness/redis.mjs';
import { poll, sha } from './_waiting.mjs';

const RELEASE = `if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0`;

export default {
  name: 'raw SET NX PX',
  role: 'base',
  async open() {
    const redis = connect();
    await redis.script('LOAD', RELEASE);
    const release = sha(RELEASE);
    return {
      acquire: (name) =>
        poll(async () => {
          const key = `l:${name}`;
          const id = randomUUID();
          return (await redis.set(key, id, 'PX', 30_000, 'NX')) === 'OK' ? { key, id } : undefined;
        }),
      release: ({ key, id }) => redis.evalsha(release, 1, key, id),
    };
  },
};
