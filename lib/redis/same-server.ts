import { connectionsOf, type RedisClient } from './redis.client.js';

/** The members of an ioredis client that say which server it uses. */
interface Address {
  readonly host?: string | undefined;
  readonly port?: number | string | undefined;
  readonly path?: string | undefined;
  readonly db?: number | undefined;
  readonly name?: string | undefined;
  readonly sentinels?: readonly Address[] | null | undefined;
}

const DEFAULT_PORT = 6379;
const LOOPBACK = /^(localhost|127(\.\d+){3}|\[?::1\]?)$/i;

/** Returns whether two clients are seen to use one database of one server. Two names of one host are not seen. */
export function haveOneServer(a: RedisClient, b: RedisClient): boolean {
  if (a === b) return true;
  const others = databasesOf(b);
  return databasesOf(a).some((database) => others.includes(database));
}

/** Returns a text for each address by which a client reaches its database. */
function databasesOf(client: RedisClient): string[] {
  // What the app lists may be a part of the Cluster, and what the Cluster says is there once it was reached.
  const { startupNodes } = client as { startupNodes?: readonly (Address | string | number)[] };
  if (client.isCluster)
    return [
      ...(startupNodes ?? []).map(addressOf),
      ...connectionsOf(client).map(({ options }) => options ?? {}),
    ].map((node) => hostOf(node) + '/0');
  const { sentinels, name, path, db = 0 } = (client.options ?? {}) as Address;
  if (sentinels) return sentinels.map((sentinel) => `${hostOf(sentinel)}/${name}/${db}`);
  // A mock has no options, and is nobody's but its own.
  return client.options ? [`${path ?? hostOf(client.options)}/${db}`] : [];
}

function addressOf(node: Address | string | number): Address {
  if (typeof node === 'number') return { port: node };
  if (typeof node !== 'string') return node;
  const { hostname: host, port } = new URL(node.includes('://') ? node : `redis://${node}`);
  return { host, port };
}

function hostOf({ host = 'localhost', port }: Address): string {
  const name = LOOPBACK.test(host) ? 'localhost' : host.toLowerCase();
  return `${name}:${port || DEFAULT_PORT}`;
}
