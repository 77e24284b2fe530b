import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** What Redis gives to scripts beyond Lua 5.1. No warning of luacheck is switched off. */
const GLOBALS = ['redis', 'KEYS', 'ARGV', 'cjson', 'cmsgpack', 'bit', 'struct'];

/** Returns the warnings of luacheck about Lua texts, of which each has a name. */
export function luacheck(texts: ReadonlyMap<string, string>): string[] {
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
