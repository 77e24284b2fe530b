import type { Redis } from 'ioredis';
import type { RedisEndpoint } from './redis-server.js';
import { findWorkerServer } from './worker-servers.js';

const server = findWorkerServer();
let admin: Redis | undefined;

/**
 * The redis-server of this jest worker. Spec files of one worker run one after the other, so a spec may flush it and
 * move its clock; one that changes its configuration, or stops it, starts a server of its own instead.
 */
export const workerRedis = (): RedisEndpoint => server;

/**
 * The worker's server with no data, at real time.
 *
 * @example beforeEach(freshRedis);
 */
export async function freshRedis(): Promise<RedisEndpoint> {
  server.clock.reset();
  admin ??= server.client();
  await admin.flushall();
  return server;
}

/** Closes every client that was opened through `workerRedis()`; done after each spec file that imports this one. */
export function closeClients(): void {
  server.closeClients();
  admin = undefined;
}

afterAll(() => {
  closeClients();
  server.clock.reset();
});
