import { batchOf } from '../../lib/script/batch.js';
import { examples } from './examples/all.examples.js';
import { luacheck } from './luacheck.js';

describe('luacheck', () => {
  it('has no warning about any script', () => {
    const texts = new Map(examples.map(({ script }) => [script.command.replaceAll(':', '.'), script.lua]));
    expect(texts.size).toBeGreaterThan(60);
    expect(luacheck(texts)).toStrictEqual([]);
  });

  it('has no warning about the batch of any script', () => {
    const batches = examples.map(({ script }) => batchOf(script));
    const texts = new Map(batches.map(({ command, lua }) => [command.replaceAll(':', '.'), lua]));
    expect(texts.size).toBeGreaterThan(60);
    expect(luacheck(texts)).toStrictEqual([]);
  });

  it('warns of what nobody reads, of a name within its own scope, and of a name that nobody sets', () => {
    const lua = `local unused = 1
local time = redis.call('TIME')
do local time = time[1] redis.call('SET', key, time) end`;
    expect(luacheck(new Map([['mutant', lua]]))).toEqual([
      expect.stringContaining("unused variable 'unused'"),
      expect.stringContaining("shadowing definition of variable 'time'"),
      expect.stringContaining("accessing undefined variable 'key'"),
    ]);
  });
});
