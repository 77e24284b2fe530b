import './require-ts.cjs'; // first: it lets the others be found
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ensureTools } from './ensure-tools.js';
import teardown from './global-teardown.js';
import { startRedisServer, type RedisServer } from './redis-server.js';
import { compileClockShim } from './server-clock.js';
import { publishServers } from './worker-servers.js';

declare global {
  /** What global-teardown.ts has to clear away. */
  var testRun: { folder: string; servers: RedisServer[] } | undefined;
}

export default async function setup({ maxWorkers }: { maxWorkers: number }): Promise<void> {
  ensureTools();
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-run-'));
  const servers: RedisServer[] = [];
  globalThis.testRun = { folder, servers };
  try {
    compileClockShim(folder);
    for (let worker = 1; worker <= maxWorkers; worker++) servers.push(await startRedisServer());
  } catch (error) {
    await teardown(); // jest does not call it when the set-up fails
    throw error;
  }
  publishServers(servers);
}
