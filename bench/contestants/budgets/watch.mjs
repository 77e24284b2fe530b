// What is usually written: WATCH, read, MULTI, EXEC, and again where somebody was faster. A connection for each spender.
import { connect } from '../../harness/redis.mjs';

const LIMIT = 1e12;

export default {
  name: 'WATCH/MULTI with retries',
  async open() {
    const all = Array.from({ length: 64 }, () => connect());
    const idle = [...all];
    const waiting = [];
    const take = () => idle.pop() ?? new Promise((resolve) => waiting.push(resolve));
    const give = (client) => (waiting.length > 0 ? waiting.shift()(client) : idle.push(client));
    const update = async (client, key, change) => {
      for (;;) {
        await client.watch(key);
        const next = change((await client.hmget(key, 'used', 'held')).map((value) => Number(value ?? 0)));
        if (!next) {
          await client.unwatch();
          return false;
        }
        if (await client.multi().hset(key, 'used', next[0], 'held', next[1]).exec()) return true;
      }
    };
    return {
      async spend(name, amount) {
        const client = await take();
        const key = `bw:${name}`;
        try {
          const reserved = await update(client, key, ([used, held]) =>
            used + held + amount > LIMIT ? undefined : [used, held + amount],
          );
          if (!reserved) return false;
          return await update(client, key, ([used, held]) => [used + amount, held - amount]);
        } finally {
          give(client);
        }
      },
      used: async (name) => Number((await all[0].hget(`bw:${name}`, 'used')) ?? 0),
    };
  },
};
