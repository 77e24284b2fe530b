import type { Redis } from 'ioredis';
import { eventually } from '../eventually.js';
import { type RedisServer, startRedisServer } from '../redis-server.js';
import { ask, roleOf } from './ask.js';
import { type RedisCluster, startRedisCluster } from './cluster.js';
import {
  crash,
  demandReplicas,
  fillMemory,
  flushScripts,
  freeze,
  killClients,
  loseMaster,
  losePrimary,
  makeReadOnly,
  pauseClients,
  reshard,
  stepClock,
  switchMaster,
  switchPrimary,
} from './faults.js';
import { type SentinelGroup, startSentinelGroup } from './sentinel.js';

const isRunning = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

describe('faults of one server', () => {
  let server: RedisServer;
  let client: Redis;
  beforeAll(async () => {
    server = await startRedisServer();
  });
  beforeEach(() => (client = server.client({ commandTimeout: 200, retryStrategy: () => 10 })));
  afterEach(() => server.closeClients());
  afterAll(() => server.stop());

  it.each([
    ['fillMemory', fillMemory, /^OOM/],
    ['makeReadOnly', makeReadOnly, /^READONLY/],
    ['demandReplicas', demandReplicas, /^NOREPLICAS/],
    ['freeze', freeze, /timed out/],
    ['pauseClients', (each: RedisServer) => pauseClients(each, 400), /timed out/],
  ])('%s fails writes until it is healed', async (_, fault, error) => {
    await client.set('key', 'value');
    const heal = await fault(server);
    await expect(client.set('key', 'other')).rejects.toThrow(error);
    await heal();
    await client.set('key', 'value'); // the one that timed out is carried out by now
    expect(await client.get('key')).toBe('value');
  });

  it('pauseClients lets readers through, if it is told to', async () => {
    await client.set('key', 'value');
    const heal = await pauseClients(server, 60_000, 'WRITE');
    expect(await client.get('key')).toBe('value');
    await expect(client.set('key', 'other')).rejects.toThrow('timed out');
    await heal();
  });

  it('fillMemory drops keys under another policy', async () => {
    await client.set('key', 'value', 'EX', 60);
    const heal = await fillMemory(server, 'volatile-lru');
    await eventually(async () => expect(await client.exists('key')).toBe(0));
    await heal();
  });

  it('killClients ends connections, and flushScripts forgets scripts', async () => {
    const sha = (await client.script('LOAD', 'return 1')) as string;
    const closed = jest.fn();
    client.on('close', closed);
    await killClients(server);
    await eventually(() => expect(closed).toHaveBeenCalled());
    await flushScripts(server);
    expect(await server.client().script('EXISTS', sha)).toStrictEqual([0]);
  });

  it('crash loses what was there, and stepClock moves TTLs', async () => {
    await client.set('key', 'value', 'PX', 60_000);
    const healClock = await stepClock(server, 30_000);
    expect(await client.pttl('key')).toBeLessThanOrEqual(30_000);
    await healClock();
    expect(await client.pttl('key')).toBeGreaterThan(30_000);
    await (
      await crash(server)
    )();
    expect(await server.client().exists('key')).toBe(0);
  });
});

describe('a Cluster of 3 masters and 3 replicas', () => {
  let cluster: RedisCluster;
  beforeAll(async () => {
    cluster = await startRedisCluster({ replicas: 1 });
  });
  afterAll(async () => {
    await cluster.stop();
    expect(cluster.servers.map(({ pid }) => isRunning(pid))).toStrictEqual(Array(6).fill(false));
  });

  const fill = async (): Promise<void> => {
    const client = cluster.client();
    await Promise.all(Array.from({ length: 100 }, (_, i) => client.set(`key ${i}`, i)));
  };
  const sum = async (): Promise<number> => {
    const client = cluster.client();
    const values = await Promise.all(Array.from({ length: 100 }, (_, i) => client.get(`key ${i}`)));
    return values.reduce((total, value) => total + Number(value), 0);
  };

  it('serves, with a replica for each, and moves its clocks together', async () => {
    expect(await cluster.masters()).toStrictEqual(cluster.servers.slice(0, 3));
    await fill();
    expect(await sum()).toBe(4950);
    cluster.clock.advance(500);
    const times = await Promise.all(cluster.servers.map((server) => ask<string[]>(server, 'TIME')));
    for (const [seconds] of times) expect(Number(seconds) * 1000).toBeGreaterThan(Date.now() - 600);
    cluster.clock.reset();
  });

  it('moves slots with their keys', async () => {
    await fill();
    const from = await cluster.ownerOf('key 1');
    const to = (await cluster.masters()).find((master) => master !== from) as RedisServer;
    const slot = Number(await ask(from, 'CLUSTER', 'KEYSLOT', 'key 1'));
    await reshard(cluster, [slot], to);
    expect(await cluster.ownerOf('key 1')).toBe(to);
    expect(await sum()).toBe(4950);
    await cluster.untilUp();
  });

  it('changes a master for its replica, by consent and without', async () => {
    await fill();
    const [master] = (await cluster.masters()) as [RedisServer];
    const next = await switchMaster(cluster, master);
    await eventually(async () => expect(await roleOf(master)).toBe('slave'));
    expect(await sum()).toBe(4950);
    await cluster.untilReplicated();

    const { next: last, heal } = await loseMaster(cluster, next, freeze);
    expect(last).toBe(master);
    await heal();
    await eventually(async () => expect(await roleOf(next)).toBe('slave'));
    await cluster.untilReplicated();

    const crashed = await loseMaster(cluster, last, crash);
    expect(await sum()).toBe(4950);
    await crashed.heal();
    await cluster.untilReplicated();
  });
});

describe('a primary with a replica and 3 Sentinels', () => {
  let group: SentinelGroup;
  beforeAll(async () => {
    group = await startSentinelGroup();
  });
  afterAll(async () => {
    await group.stop();
    const all = [...group.servers, ...group.sentinels];
    expect(all.map(({ pid }) => isRunning(pid))).toStrictEqual(Array(5).fill(false));
  });

  it('switches as it is told to, and when the primary is lost', async () => {
    const client = group.client({ failoverDetector: true });
    await client.set('key', 'value');
    expect(await client.wait(1, 10_000)).toBe(1); // What no replica has yet a switch may lose.
    const [first, second] = group.servers as [RedisServer, RedisServer];
    expect(await group.primary()).toBe(first);
    expect(await switchPrimary(group)).toBe(second);
    await group.untilReplicated();
    expect(await client.get('key')).toBe('value');

    const frozen = await losePrimary(group, freeze);
    expect(frozen).toMatchObject({ old: second, next: first });
    await frozen.heal();
    await group.untilReplicated();

    const crashed = await losePrimary(group, crash);
    expect(crashed.next).toBe(second);
    await crashed.heal();
    await group.untilReplicated();
    expect(await group.client().get('key')).toBe('value');
    await group.flush();
    expect(await group.client().get('key')).toBeNull();
  });
});
