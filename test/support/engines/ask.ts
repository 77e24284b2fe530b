import type { RedisServer } from '../redis-server.js';

/** Asks one server one thing, on a connection of its own. */
export async function ask<T = string>(
  server: RedisServer,
  command: string,
  ...args: (string | number)[]
): Promise<T> {
  const client = server.client({ retryStrategy: () => null, connectTimeout: 1_000, commandTimeout: 5_000 });
  try {
    return (await client.call(command, ...args)) as T;
  } finally {
    server.release(client);
  }
}

/** What ROLE calls a server: `master`, `slave`, `sentinel`; `dead` when it does not answer. */
export const roleOf = (server: RedisServer): Promise<string> =>
  ask<string[]>(server, 'ROLE').then(
    ([role]) => role as string,
    () => 'dead',
  );

/**
 * Throws while a replica lacks what its primary has written so far. A link that is up says less: a primary sends nothing
 * until its replica has answered once, which may take a second.
 */
export async function expectCopied(primary: RedisServer, replica: RedisServer): Promise<void> {
  const offsetOf = async (server: RedisServer, name: string): Promise<number> =>
    Number(new RegExp(`${name}:(\\d+)`).exec(await ask(server, 'INFO', 'replication'))?.[1] ?? NaN);
  const written = await offsetOf(primary, 'master_repl_offset');
  const copied = await offsetOf(replica, 'slave_repl_offset');
  if (!(copied >= written)) throw new Error(`Replica ${replica.port} has ${copied} of ${written} bytes.`);
}

/** Throws while a replica has no link to the server that it copies: what is lost then was never copied. */
export async function expectLinked(server: RedisServer): Promise<void> {
  const info = await ask(server, 'INFO', 'replication');
  if (info.includes('role:slave') && !info.includes('master_link_status:up'))
    throw new Error(`Replica ${server.port} has no link to its master.`);
}
