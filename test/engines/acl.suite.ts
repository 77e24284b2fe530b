import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { startSingleEngine } from '../support/engines/engine.js';
import { describeContracts } from './contracts.js';

const page = readFileSync(resolve(__dirname, '../../docs/redis.md'), 'utf8');
const commands = (/```acl\n([^]*?)\n```/.exec(page)?.[1] ?? '')
  .split(/\s+/)
  .filter((rule) => /^[+-]/.test(rule));

// The contracts use key prefixes of their own, look at the server by an administrator, and have the calls of an operator, who needs
// SCAN besides (docs/operations.md).
describeContracts('a user with the commands of docs/redis.md', async () => {
  const engine = await startSingleEngine();
  await engine.server.client().acl('SETUSER', 'app', 'on', '>x', '~*', '&*', ...commands, '+scan');
  return { ...engine, client: () => engine.server.client({ username: 'app', password: 'x' }) };
});
