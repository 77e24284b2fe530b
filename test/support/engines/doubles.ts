import { setTimeout as sleep } from 'node:timers/promises';
import type { RedisConnection } from '../../../lib/assembly/redis-connection.js';
import { specLayout } from '../../../lib/lock/redis/lock.layout.js';
import { locksOn } from '../redis-backends.js';
import type { RedisServer } from '../redis-server.js';
import type { SentinelGroup } from './sentinel.js';

/** A key that was granted twice within its TTL. */
export interface Double {
  /** When the first grant came, in ms after the switch was announced: negative before it. */
  readonly firstAtMs: number;
  /** Whether the second fence was higher. */
  readonly rises: boolean;
}

const INSTANCES = 2;
const WORKERS_EACH = 2;
const NEW_KEY_EVERY_MS = 5;
const LATEST = 100;
const BEFORE_MS = 300;
const AFTER_MS = 2_000;

let runs = 0;

/** Two instances take every key that they can get, and keep it, while the Sentinels switch to another primary. */
export async function doublesDuring(
  group: SentinelGroup,
  open: () => RedisConnection,
  fault: () => Promise<unknown>,
): Promise<Double[]> {
  const run = runs++;
  const connections = Array.from({ length: INSTANCES }, open);
  for (const connection of connections) expect((await connection.opened()).fault).toBeUndefined();
  const grants = new Map<string, { atMs: number; fence: string }[]>();
  const startedMs = performance.now();
  let over = false;
  const worker = async ({ runner }: RedisConnection): Promise<void> => {
    const backend = locksOn(runner, specLayout('syncguard'));
    while (!over) {
      const newest = Math.floor((performance.now() - startedMs) / NEW_KEY_EVERY_MS);
      const key = `${run}:${newest - Math.floor(Math.random() * LATEST)}`;
      const result = await backend.acquire({ key, ttlMs: 60_000 }).catch(() => undefined);
      if (result?.ok) {
        const grant = { atMs: performance.now(), fence: result.fence };
        grants.set(key, [...(grants.get(key) ?? []), grant]);
      } else await sleep(1);
    }
  };
  const working = connections.flatMap((connection) =>
    Array.from({ length: WORKERS_EACH }, () => worker(connection)),
  );
  await sleep(BEFORE_MS);
  let switchedMs = Infinity;
  const listener = (group.sentinels[0] as RedisServer).client();
  listener.on('message', () => (switchedMs = Math.min(switchedMs, performance.now())));
  await listener.subscribe('+switch-master');
  await fault();
  await sleep(AFTER_MS);
  over = true;
  await Promise.all(working);
  await Promise.all(connections.map((connection) => connection.close()));
  const all = [...grants.values()];
  // It goes on after the switch.
  expect(Math.max(...all.flat().map(({ atMs }) => atMs))).toBeGreaterThan(switchedMs + AFTER_MS / 4);
  return all.flatMap(([one, two]) =>
    one && two ? [{ firstAtMs: one.atMs - switchedMs, rises: one.fence < two.fence }] : [],
  );
}
