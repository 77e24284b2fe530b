import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { examples } from './examples/all.examples.js';

/** What Redis gives to scripts beyond Lua 5.1. No warning of luacheck is switched off. */
const GLOBALS = ['redis', 'KEYS', 'ARGV', 'cjson', 'cmsgpack', 'bit', 'struct'];

/** Returns the warnings of luacheck about Lua texts, of which each has a name. */
function luacheck(texts: ReadonlyMap<string, string>): string[] {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-lua-'));
  try {
    for (const [name, lua] of texts) writeFileSync(join(folder, `${name}.lua`), lua);
    const options = [
      '--no-config',
      '--std',
      'lua51',
      '--read-globals',
      ...GLOBALS,
      '--formatter',
      'plain',
      '--codes',
    ];
    const { status, stdout, error } = spawnSync('luacheck', ['.', ...options], {
      cwd: folder,
      encoding: 'utf8',
    });
    if (error) throw error;
    const warnings = stdout.split('\n').filter((line) => line !== '');
    expect(status).toBe(warnings.length > 0 ? 1 : 0);
    return warnings;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

describe('luacheck', () => {
  it('has no warning about any script', () => {
    const texts = new Map(examples.map(({ script }) => [script.command.replaceAll(':', '.'), script.lua]));
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
