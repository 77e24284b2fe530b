import type { Redis } from 'ioredis';
import type { Engine } from '../support/engines/engine.js';
import { type Leftover, NAMES_NO_LOCK } from './history.js';

const FENCE = /:fence:/;
/** Of a lock: budgets keep ids of that form too. */
const INDEX = /^(?!\w+\/budget:).*:id:[\w-]{22}$/;

/** What stands on an engine after all locks are over that must not: locks, and what nothing will ever clear away. */
export async function findLeftovers(engine: Engine): Promise<Leftover[]> {
  const leftovers = await Promise.all((await engine.primaries()).map((server) => leftOn(server.client())));
  return leftovers.flat();
}

async function leftOn(client: Redis): Promise<Leftover[]> {
  const found: Leftover[] = [];
  for await (const keys of client.scanStream({ count: 500 }) as AsyncIterable<string[]>)
    for (const key of keys) {
      const leftover = FENCE.test(key) ? undefined : await examine(client, key);
      if (leftover) found.push(leftover);
    }
  return found;
}

async function examine(client: Redis, key: string): Promise<Leftover | undefined> {
  const ttl = await client.pttl(key);
  if (ttl === -1) return { type: 'leftover', key, problem: 'has no TTL' };
  if (INDEX.test(key)) {
    const record = await client.get(key);
    return record && !(await client.exists(record))
      ? { type: 'leftover', key, problem: NAMES_NO_LOCK }
      : undefined;
  }
  const value = (await client.type(key)) === 'string' ? await client.get(key) : null;
  const lock = value?.startsWith('{"lockId"') ? (JSON.parse(value) as { key: string }).key : undefined;
  return lock === undefined
    ? undefined
    : { type: 'leftover', key, problem: `a lock for ${ttl} ms more`, lock };
}
