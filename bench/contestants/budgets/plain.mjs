// L, the base: a budget of two scripts. One limit, holds that expire, and no more.
import { connect } from '../../harness/redis.mjs';
import { sha } from '../locks/_waiting.mjs';

// KEYS: totals { used, held }, holds id -> amount, expiries.
const RESERVE = `
local t=redis.call('TIME') local now=t[1]*1000+math.floor(t[2]/1000)
local dead=redis.call('ZRANGEBYSCORE',KEYS[3],'-inf',now,'LIMIT',0,16)
for i=1,#dead do
  local a=redis.call('HGET',KEYS[2],dead[i])
  if a then redis.call('HINCRBY',KEYS[1],'held',-a) redis.call('HDEL',KEYS[2],dead[i]) end
  redis.call('ZREM',KEYS[3],dead[i])
end
local v=redis.call('HMGET',KEYS[1],'used','held')
local left=tonumber(ARGV[3])-(tonumber(v[1]) or 0)-(tonumber(v[2]) or 0)
local a=tonumber(ARGV[2]) if a>left then return {0,left} end
if redis.call('HSETNX',KEYS[2],ARGV[1],ARGV[2])==0 then return {2,left} end
redis.call('HINCRBY',KEYS[1],'held',ARGV[2]) redis.call('ZADD',KEYS[3],now+ARGV[4],ARGV[1])
return {1,left-a}`;
const FINALIZE = `
local a=redis.call('HGET',KEYS[2],ARGV[1]) if not a then return 0 end
redis.call('HDEL',KEYS[2],ARGV[1]) redis.call('ZREM',KEYS[3],ARGV[1])
redis.call('HINCRBY',KEYS[1],'held',-a) redis.call('HINCRBY',KEYS[1],'used',ARGV[2]) return 1`;
const LIMIT = 1e12;

export default {
  name: 'plain scripts, one limit',
  role: 'base',
  async open() {
    const redis = connect();
    for (const lua of [RESERVE, FINALIZE]) await redis.script('LOAD', lua);
    const [reserve, finalize] = [sha(RESERVE), sha(FINALIZE)];
    const own = Math.random().toString(36).slice(2, 8);
    let last = 0;
    return {
      async spend(name, amount) {
        const key = `{bu:${name}}`;
        const keys = [key, `${key}r`, `${key}z`];
        const id = own + (++last).toString(36);
        const [held] = await redis.evalsha(reserve, 3, ...keys, id, amount, LIMIT, 60_000);
        if (held !== 1) return false;
        await redis.evalsha(finalize, 3, ...keys, id, amount);
        return true;
      },
      used: async (name) => Number((await redis.hget(`{bu:${name}}`, 'used')) ?? 0),
    };
  },
};
