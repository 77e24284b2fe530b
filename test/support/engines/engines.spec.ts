import type { Redis } from 'ioredis';
import { eventually } from '../eventually.js';
import { type RedisServer, startRedisServer } from '../redis-server.js';
import {
  crash,
  demandReplicas,
  fillMemory,
  flushScripts,
  freeze,
  killClients,
  makeReadOnly,
  pauseClients,
  stepClock,
} from './faults.js';

describe('faults of one server', () => {
  let server: RedisServer;
  let client: Redis;
  /** Waits no longer than a fault needs to be seen. */
  let impatient: Redis;
  beforeAll(async () => {
    server = await startRedisServer();
  });
  beforeEach(() => {
    client = server.client({ retryStrategy: () => 10 });
    impatient = server.client({ commandTimeout: 200, retryStrategy: () => 10 });
  });
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
    const writer = error.test('timed out') ? impatient : client;
    await expect(writer.set('key', 'other')).rejects.toThrow(error);
    await heal();
    await client.set('key', 'value'); // the one that timed out is carried out by now
    expect(await client.get('key')).toBe('value');
  });

  it('pauseClients lets readers through, if it is told to', async () => {
    await client.set('key', 'value');
    const heal = await pauseClients(server, 60_000, 'WRITE');
    expect(await client.get('key')).toBe('value');
    await expect(impatient.set('key', 'other')).rejects.toThrow('timed out');
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
