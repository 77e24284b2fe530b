import 'reflect-metadata';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Redis, RedisOptions } from 'ioredis';
import { leaveReplica } from 'nestjs-syncguard';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { specLayout } from '../../lib/lock/redis/lock.layout.js';
import { locksOn } from '../support/redis-backends.js';
import { atRate } from '../support/at-rate.js';
import {
  connectionsWith,
  IOREDIS_VERSIONS,
  type IORedisName,
  ioredisOf,
} from '../support/ioredis-versions.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';

const LOAD = { perSecond: 200, seconds: 25 };
const CALLS = LOAD.perSecond * LOAD.seconds;
/** Of the commands that a call leaves waiting in the memory of the process. */
const AT_MOST_A_CALL = 1.1;
const UNDONE_WITHIN_MS = 5_000;

/** As docs/redis.md says. */
const RECOMMENDED: RedisOptions = {
  socketTimeout: 2_000,
  reconnectOnError: leaveReplica(),
};

const waitingIn = (client: RedisClient): number => {
  const { commandQueue, offlineQueue } = client as unknown as Record<string, { length: number } | undefined>;
  return (commandQueue?.length ?? 0) + (offlineQueue?.length ?? 0);
};

describe.each(IOREDIS_VERSIONS)('a server that hangs for 25 s, %s', (_, version: IORedisName) => {
  let server: RedisServer;
  beforeEach(async () => {
    server = await startRedisServer();
  });
  afterEach(async () => {
    server.resume();
    await server.stop();
  });

  const theirs = (options: RedisOptions = {}): Redis =>
    server.track(
      new (ioredisOf(version).Redis)({ port: server.port, disconnectTimeout: 100, ...options }).on(
        'error',
        () => {},
      ),
    );
  const keysLeft = async (): Promise<string[]> => {
    const keys = await server.client().keys('syncguard:*');
    return keys.filter((key) => !key.includes(':fence:'));
  };

  it.each<[string, () => unknown]>([
    ['our own connection', () => server.url],
    ["a user's client with the defaults of ioredis", () => theirs()],
    ["a user's client as docs/redis.md says", () => theirs(RECOMMENDED)],
  ])(
    'through %s: no more than a command a call waits, and late grants are undone in 5 s',
    async (name, redis) => {
      const { RedisConnection } = connectionsWith(version);
      const connection = new RedisConnection({
        redis: redis() as string,
        keyPrefix: 'syncguard',
        commandTimeoutMs: 1_000,
        closeClient: false,
      });
      expect((await connection.opened()).fault).toBeUndefined();
      const backend = locksOn(connection.runner, specLayout('syncguard'));
      const { client } = connection.runner;

      server.pause();
      let mostWaiting = 0;
      const startMs = performance.now();
      const codes = await atRate(LOAD, async (i) => {
        mostWaiting = Math.max(mostWaiting, waitingIn(client));
        return backend.acquire({ key: `order:${i}`, ttlMs: 600_000 }).then(
          () => 'granted',
          (error: { code: string }) => error.code,
        );
      });
      const tookMs = performance.now() - startMs;
      mostWaiting = Math.max(mostWaiting, waitingIn(client));
      expect(codes).not.toContain('granted');
      expect(mostWaiting).toBeLessThanOrEqual(AT_MOST_A_CALL * CALLS);

      server.resume();
      const resumedMs = performance.now();
      let lastSeenMs = 0;
      let mostSeen = 0;
      while (performance.now() < resumedMs + UNDONE_WITHIN_MS) {
        const { length } = await keysLeft();
        mostSeen = Math.max(mostSeen, length);
        if (length > 0) lastSeenMs = performance.now() - resumedMs;
        await sleep(20);
      }
      const fences = await server.client().keys('syncguard:fence:*');
      console.log(
        `${version}, ${name}: ${CALLS} calls in ${Math.round(tookMs)} ms; at most ${mostWaiting} commands waited; ` +
          `${fences.length} grants came late, the last was undone ${Math.round(lastSeenMs)} ms after the return.`,
      );
      expect(fences.length).toBeGreaterThan(0);
      expect(await keysLeft()).toStrictEqual([]);
      await connection.close();
    },
    60_000,
  );
});
