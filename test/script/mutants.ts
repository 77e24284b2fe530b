import type { Redis } from 'ioredis';
import { balanceScript } from '../../lib/budget/redis/read.scripts.js';
import { incrementScript } from '../../lib/counter/redis/counter.scripts.js';
import { defineScript } from '../../lib/script/define-script.js';
import { budgetExamples } from './examples/budget.examples.js';
import { counterExamples } from './examples/counter.examples.js';
import type { ScriptExample } from './examples/example.js';

/** A script that breaks a law, so that the tests show that the law can find it. */
interface Mutant {
  readonly law: number;
  readonly fault: string;
  readonly example: ScriptExample;
}

const keys = { one: 'syncguard/mutant:{t}:1', two: 'syncguard/mutant:{t}:2' };

const mutant = (
  law: number,
  fault: string,
  lua: string,
  prepare?: (client: Redis) => Promise<unknown>,
): Mutant => {
  const script = defineScript({ name: `mutant-${law}`, keys: ['one', 'two'], args: [], lua, decode: String });
  return { law, fault, example: { script, keys, args: {}, prepare } };
};

/** A budget whose holds are removed from their queue before they are settled. */
function hastyBudget(): ScriptExample {
  const [first, last] = ["call('ZREM', garbage, '-')", "call('ZREM', pending, unpack(due))"];
  const example = budgetExamples.find(({ script }) => script === balanceScript) as ScriptExample;
  return { ...example, script: { ...example.script, lua: example.script.lua.replace(first, last) } };
}

/** The counter without the step that finds the trace of an earlier run. */
function doubledCounter(): ScriptExample {
  const trace = 'if counted then return';
  const example = counterExamples.find(({ script }) => script === incrementScript);
  if (!example?.script.lua.includes(trace)) throw new Error(`The counter's script has no more: ${trace}`);
  return {
    ...example,
    script: { ...example.script, lua: example.script.lua.replace(trace, 'if false then return') },
  };
}

export const mutants: readonly Mutant[] = [
  mutant(1, 'a key that is not declared', `redis.call('SET', one .. ':more', 1, 'PX', 1000) return 1`),
  mutant(
    2,
    'a write before the check of a type',
    `redis.call('SET', one, 1, 'PX', 1000) return redis.call('HLEN', two)`,
  ),
  mutant(
    2,
    'a TTL that is set before the check',
    `redis.call('PEXPIRE', one, 1000) return redis.call('HLEN', two)`,
    (client) => client.hset(keys.one, 'a', '1'),
  ),
  mutant(2, 'a value of another type that is deleted unread', `return redis.call('UNLINK', one)`),
  mutant(
    2,
    'an error of Lua in the place of a check',
    `return redis.call('TYPE', one).ok == 'stream' and nil + 1 or 1`,
  ),
  mutant(4, 'a key without a TTL', `redis.call('SET', one, 1) return 1`),
  mutant(5, 'a reply that is not flat', `return {1, {2}}`),
  mutant(5, 'a reply of nil', `return nil`),
  { law: 7, fault: 'a counter that counts a call twice', example: doubledCounter() },
  mutant(
    7,
    'a TTL that a second run extends',
    `
local ttl = redis.call('PTTL', one)
redis.call('SET', one, 1, 'PX', math.max(ttl, 0) + 1000)
return 1`,
  ),
  mutant(
    7,
    'an answer that a second run does not repeat',
    `
redis.call('SET', one, 1, 'PX', 1000, 'NX')
return redis.call('SET', two, 1, 'PX', 1000, 'NX') and 1 or 0`,
  ),
  mutant(
    8,
    'a TTL that comes after what it ends',
    `redis.call('HSET', one, 'a', 1) redis.call('PEXPIRE', one, 1000) return 1`,
  ),
  mutant(
    8,
    'a trace that comes before what it stands for',
    `
if redis.call('SET', one, 1, 'PX', 1000, 'NX') then redis.call('PSETEX', two, 1000, 1) end
return 1`,
  ),
  mutant(
    8,
    'an amount that is counted again',
    `redis.call('INCR', one) redis.call('PEXPIRE', one, 1000) return 1`,
  ),
  { law: 8, fault: 'a hold that is forgotten before it is settled', example: hastyBudget() },
];
