import { RedisEndpoint } from './redis-server.js';
import { ServerClock } from './server-clock.js';

/** How global-setup.ts tells the workers about their servers. */
const VARIABLE = 'SYNCGUARD_TEST_SERVERS';

interface Entry {
  port: number;
  pid: number;
  clockFile: string;
}

export function publishServers(servers: readonly RedisEndpoint[]): void {
  const entries = servers.map(({ port, pid, clock }): Entry => ({ port, pid, clockFile: clock.file }));
  process.env[VARIABLE] = JSON.stringify(entries);
}

/** The server of this jest worker: no other one uses it. */
export function findWorkerServer(): RedisEndpoint {
  const entries = JSON.parse(process.env[VARIABLE] ?? '[]') as Entry[];
  const entry = entries[Number(process.env.JEST_WORKER_ID) - 1];
  if (!entry)
    throw new Error(`No redis-server for jest worker ${process.env.JEST_WORKER_ID}: see global-setup.ts`);
  return new RedisEndpoint(entry.port, new ServerClock(entry.clockFile), entry.pid);
}
