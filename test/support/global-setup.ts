import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ensureTools } from './ensure-tools.js';
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
  compileClockShim(folder);
  const servers = await Promise.all(Array.from({ length: maxWorkers }, () => startRedisServer()));
  publishServers(servers);
  globalThis.testRun = { folder, servers };
}
