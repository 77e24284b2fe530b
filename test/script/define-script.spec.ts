import { createHash } from 'node:crypto';
import { defineScript } from '../../lib/script/define-script.js';

const add = () =>
  defineScript({
    name: 'add',
    keys: ['sum', 'unused'],
    args: ['amount'],
    lua: `\n\nreturn redis.call('INCRBY', sum, amount)\n`,
    decode: Number,
  });

const LUA = `local sum =\n  KEYS[1]\nlocal amount =\n  ARGV[1]\nreturn redis.call('INCRBY', sum, amount)\n`;
const COMMAND = `syncguard:add:${createHash('sha1').update(LUA).digest('hex').slice(0, 8)}`;

describe('defineScript', () => {
  it('binds the names that the text uses, and names the command by the hash', () => {
    expect(add().lua).toBe(LUA);
    expect(add().command).toBe(COMMAND);
  });

  // An app in memory has all scripts and runs none.
  it('composes the text when it is first read, and not before', () => {
    const script = add();
    expect(Object.keys(script)).not.toContain('lua');
    expect([script.command, script.lua]).toEqual([COMMAND, LUA]);
    expect(Object.getOwnPropertyDescriptor(script, 'lua')).toEqual({
      value: LUA,
      writable: true,
      enumerable: true,
      configurable: true,
    });
    expect({ ...script }).toMatchObject({ name: 'add', lua: LUA, command: COMMAND });
  });
});
