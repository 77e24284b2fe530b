import type { RedisServer } from '../redis-server.js';
import { eventually } from '../eventually.js';
import { ask, roleOf } from './ask.js';
import type { RedisCluster } from './cluster.js';
import type { SentinelGroup } from './sentinel.js';

/** Ends a fault, and waits until it is over. */
export type Heal = () => Promise<void>;

/** Where nothing listens. */
const NOWHERE = ['127.0.0.1', 1] as const;

async function configure(server: RedisServer, setting: string, value: string | number): Promise<Heal> {
  const [, before = ''] = await ask<string[]>(server, 'CONFIG', 'GET', setting);
  await ask(server, 'CONFIG', 'SET', setting, value);
  return async () => void (await ask(server, 'CONFIG', 'SET', setting, before));
}

// Of one server. A half-open line and a reply that is lost are the network's: see TcpProxy.

/** The process is killed, and with it all that it knew. It starts anew, empty. */
export async function crash(server: RedisServer): Promise<Heal> {
  await server.kill();
  return () => server.restart();
}

/** The process stands still; its connections stay open, and take what is sent to them. */
export async function freeze(server: RedisServer): Promise<Heal> {
  server.pause();
  return async () => server.resume();
}

/** The server answers nobody for a while, which nothing ends sooner, or no writer, until it is healed. */
export async function pauseClients(
  server: RedisServer,
  ms: number,
  which: 'ALL' | 'WRITE' = 'ALL',
): Promise<Heal> {
  await ask(server, 'CLIENT', 'PAUSE', ms, which);
  return async () =>
    void (await eventually(() => ask(server, 'CLIENT', 'UNPAUSE'), { timeoutMs: ms + 5_000 }));
}

/** Every connection of users is closed, those that only listen as well. */
export async function killClients(server: RedisServer): Promise<void> {
  for (const type of ['normal', 'pubsub']) await ask(server, 'CLIENT', 'KILL', 'TYPE', type);
}

/** The server forgets every script. */
export const flushScripts = async (server: RedisServer): Promise<void> =>
  void (await ask(server, 'SCRIPT', 'FLUSH'));

/** The server is full: under `noeviction` it refuses what needs memory, else it drops keys. */
export async function fillMemory(server: RedisServer, policy = 'noeviction'): Promise<Heal> {
  const healPolicy = await configure(server, 'maxmemory-policy', policy);
  const healMemory = await configure(server, 'maxmemory', 1);
  return async () => {
    await healMemory();
    await healPolicy();
  };
}

/** A primary becomes a replica under its connections: READONLY. It keeps its data, since it reaches no primary. */
export async function makeReadOnly(server: RedisServer): Promise<Heal> {
  await ask(server, 'REPLICAOF', ...NOWHERE);
  return async () => void (await ask(server, 'REPLICAOF', 'NO', 'ONE'));
}

/** The server wants more replicas than it has: NOREPLICAS for every write. */
export const demandReplicas = (server: RedisServer): Promise<Heal> =>
  configure(server, 'min-replicas-to-write', 5);

/** The clock of a server, and of those that share it, steps. It steps back by as much. */
export async function stepClock(server: RedisServer, ms: number): Promise<Heal> {
  server.clock.advance(ms);
  return async () => server.clock.advance(-ms);
}

// Of a Sentinel group.

/** The Sentinels put the replica in the primary's place, as for maintenance. Gives the new primary. */
export async function switchPrimary(group: SentinelGroup): Promise<RedisServer> {
  const old = await group.primary();
  await ask(group.sentinels[0] as RedisServer, 'SENTINEL', 'FAILOVER', group.name);
  return group.untilSwitchedFrom(old);
}

/** The primary is lost without a word, killed or frozen, until the Sentinels have another. It returns by `heal`. */
export async function losePrimary(
  group: SentinelGroup,
  how: (server: RedisServer) => Promise<Heal>,
): Promise<{ old: RedisServer; next: RedisServer; heal: Heal }> {
  const old = await group.primary();
  const heal = await how(old);
  return { old, next: await group.untilSwitchedFrom(old), heal };
}

// Of a Cluster with replicas.

async function untilMaster(server: RedisServer): Promise<void> {
  await eventually(
    async () => {
      if ((await roleOf(server)) !== 'master') throw new Error(`Port ${server.port} does not take over.`);
    },
    { timeoutMs: 20_000 },
  );
}

/** A replica takes its master's place, with the master's consent: nothing is lost. Gives the new master. */
export async function switchMaster(cluster: RedisCluster, master: RedisServer): Promise<RedisServer> {
  const replica = await cluster.replicaOf(master);
  await ask(replica, 'CLUSTER', 'FAILOVER');
  await untilMaster(replica);
  await cluster.untilUp();
  return replica;
}

/** A master is lost without a word, killed or frozen, until its replica has taken over. It returns by `heal`. */
export async function loseMaster(
  cluster: RedisCluster,
  master: RedisServer,
  how: (server: RedisServer) => Promise<Heal>,
): Promise<{ next: RedisServer; heal: Heal }> {
  const next = await cluster.replicaOf(master);
  const heal = await how(master);
  await untilMaster(next);
  await cluster.untilUp(cluster.servers.filter((server) => server !== master));
  return { next, heal };
}

/** Moves slots with their keys to another master, key by key, as an operator does under load. */
export async function reshard(
  cluster: RedisCluster,
  slots: Iterable<number>,
  to: RedisServer,
): Promise<void> {
  const toId = await ask(to, 'CLUSTER', 'MYID');
  for (const slot of slots) {
    const from = await cluster.ownerOf(slot);
    if (from === to) continue;
    const fromId = await ask(from, 'CLUSTER', 'MYID');
    await ask(to, 'CLUSTER', 'SETSLOT', slot, 'IMPORTING', fromId);
    await ask(from, 'CLUSTER', 'SETSLOT', slot, 'MIGRATING', toId);
    await moveKeys(from, to, slot);
    for (const master of [to, from]) await ask(master, 'CLUSTER', 'SETSLOT', slot, 'NODE', toId);
  }
  await cluster.untilAgreed();
}

async function moveKeys(from: RedisServer, to: RedisServer, slot: number): Promise<void> {
  for (;;) {
    const keys = await ask<string[]>(from, 'CLUSTER', 'GETKEYSINSLOT', slot, 100);
    if (keys.length === 0) return;
    await ask(from, 'MIGRATE', to.host, to.port, '', 0, 5_000, 'KEYS', ...keys);
  }
}
