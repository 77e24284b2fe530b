// S, the base: a log in a sorted set with two windows, as one script that does no more than it must.
import { connect } from '../../harness/redis.mjs';
import { sha } from '../locks/_waiting.mjs';

const CHECK = `
local now=tonumber(redis.call('TIME')[1])
local tw,tt,tb,lw,lt,lb,ttl=tonumber(ARGV[1]),tonumber(ARGV[2]),ARGV[3],tonumber(ARGV[4]),tonumber(ARGV[5]),ARGV[6],ARGV[7]
redis.call('ZREMRANGEBYSCORE',KEYS[1],'-inf',now-math.max(tw,lw))
local seq=redis.call('INCR',KEYS[3])
redis.call('ZADD',KEYS[1],now,string.format('%d:%d',now,seq))
redis.call('EXPIRE',KEYS[1],ttl)
local s=redis.call('ZCOUNT',KEYS[1],now-tw,now)
local l=redis.call('ZCOUNT',KEYS[1],now-lw,now)
if s>=tt then redis.call('SET',KEYS[2],'1','EX',tb,'NX') return {0,math.max(redis.call('TTL',KEYS[2]),0),s,l,'temp'} end
if l>=lt then redis.call('SET',KEYS[2],'1','EX',lb,'NX') return {0,math.max(redis.call('TTL',KEYS[2]),0),s,l,'long'} end
return {1,0,s,l,'none'}`;

export default {
  name: 'plain script, two windows',
  role: 'base',
  async open({ limit }) {
    const redis = connect();
    await redis.script('LOAD', CHECK);
    const check = sha(CHECK);
    return {
      async check(name) {
        const key = `{al:${name}}`;
        const keys = [`${key}:a`, `${key}:b`, `${key}:s`];
        const [allowed] = await redis.evalsha(check, 3, ...keys, 60, limit, 60, 600, limit * 5, 600, 660);
        return allowed === 1;
      },
    };
  },
};
