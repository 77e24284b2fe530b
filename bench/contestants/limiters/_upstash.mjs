// @upstash/ratelimit talks to Redis over HTTP. Here its scripts run through ioredis. They begin with a line of flags
// that Redis 7.0 refuses, so that line is left out.
import { Ratelimit } from '@upstash/ratelimit';
import { connect } from '../../harness/redis.mjs';
import { sha } from '../locks/_waiting.mjs';

function overIoredis(redis) {
  const known = new Map();
  return {
    evalsha: (hash, keys, args) => redis.evalsha(known.get(hash) ?? hash, keys.length, ...keys, ...args),
    eval(script, keys, args) {
      const lua = script.replace(/^#!lua[^\n]*\n/, '');
      known.set(sha(script), sha(lua));
      return redis.eval(lua, keys.length, ...keys, ...args);
    },
  };
}

export const upstash = (name, ephemeralCache, role) => ({
  name,
  role,
  async open({ limit }) {
    const limiter = new Ratelimit({
      redis: overIoredis(connect()),
      limiter: Ratelimit.slidingWindow(limit, '60 s'),
      analytics: false,
      prefix: 'up',
      ephemeralCache: ephemeralCache && ephemeralCache(),
    });
    return { check: async (key) => (await limiter.limit(key)).success };
  },
});
