import type { Engine } from '../support/engines/engine.js';
import type { ClusterEngine, SentinelEngine, SingleEngine } from '../support/engines/engine.js';
import {
  crash,
  demandReplicas,
  fillMemory,
  flushScripts,
  freeze,
  type Heal,
  killClients,
  loseMaster,
  losePrimary,
  makeReadOnly,
  pauseClients,
  reshard,
  stepClock,
  switchMaster,
  switchPrimary,
} from '../support/engines/faults.js';
import type { RedisServer } from '../support/redis-server.js';
import type { TcpProxy } from '../support/tcp-proxy.js';
import type { Loss } from './history.js';
import { Random } from './random.js';
import { type Await, AWAITS } from './traps.js';

/** What a fault may strike beside the engine. */
export interface Field {
  readonly engine: Engine;
  /** Between the workers and a single server. */
  readonly proxy?: TcpProxy;
  /** The workers that run. */
  killWorker(random: Random, at?: Await): Promise<number>;
  /** Stops one for a while. */
  freezeWorker(random: Random, ms: number): Promise<number>;
  stallWorker(random: Random, at: Await, ms: number): Promise<number>;
}

export interface Fault {
  readonly name: string;
  readonly loses: Loss;
  /** Breaks something, waits, heals it. Gives the worker that it struck, if it was one. */
  run(field: Field, random: Random): Promise<number | void>;
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function during(ms: number, heal: Promise<Heal>): Promise<void> {
  const end = await heal;
  await pause(ms);
  await end();
}

const aPrimary = async ({ engine }: Field, random: Random): Promise<RedisServer> =>
  random.pick(await engine.primaries());

/** A fault of one primary that lasts for a while. */
const ofPrimary = (
  name: string,
  [lowMs, highMs]: readonly [number, number],
  fault: (server: RedisServer, ms: number) => Promise<Heal>,
  loses: Loss = 'nothing',
): Fault => ({
  ...{ name, loses },
  async run(field, random) {
    const ms = random.between(lowMs, highMs);
    await during(ms, fault(await aPrimary(field, random), ms));
  },
});

const sudden = (name: string, fault: (server: RedisServer) => Promise<void>): Fault => ({
  ...{ name, loses: 'nothing' },
  run: async (field, random) => fault(await aPrimary(field, random)),
});

const workers: Fault[] = [
  { name: 'a worker is killed', loses: 'nothing', run: (field, random) => field.killWorker(random) },
  {
    ...{ name: 'a worker stands still', loses: 'nothing' },
    run: (field, random) => field.freezeWorker(random, random.between(500, 2_500)),
  },
  {
    ...{ name: 'a worker is killed at an await', loses: 'nothing' },
    run: (field, random) => field.killWorker(random, random.pick(AWAITS)),
  },
  {
    ...{ name: 'a worker stands still at an await', loses: 'nothing' },
    run: (field, random) => field.stallWorker(random, random.pick(AWAITS), random.between(500, 2_500)),
  },
];

const everywhere: Fault[] = [
  ofPrimary('CLIENT PAUSE', [200, 1_200], (server, ms) => pauseClients(server, ms)),
  ofPrimary('CLIENT PAUSE WRITE', [200, 1_200], (server, ms) => pauseClients(server, ms, 'WRITE')),
  ofPrimary('a full server', [300, 1_500], (server) => fillMemory(server)),
  ofPrimary('NOREPLICAS', [300, 1_500], demandReplicas),
  sudden('CLIENT KILL', killClients),
  sudden('SCRIPT FLUSH', flushScripts),
  ...workers,
];

const network = (
  name: string,
  [lowMs, highMs]: [number, number],
  cut: (proxy: TcpProxy) => unknown,
): Fault => ({
  ...{ name, loses: 'nothing' },
  async run({ proxy }, random) {
    if (!proxy) throw new Error(`${name} needs a proxy.`);
    await cut(proxy);
    await pause(random.between(lowMs, highMs));
    await proxy.restore();
  },
});

const single: Fault[] = [
  ...everywhere,
  ofPrimary('SIGSTOP', [200, 2_500], freeze),
  ofPrimary('READONLY', [300, 1_500], makeReadOnly),
  ofPrimary('kill -9, back empty', [100, 1_000], crash, 'all'),
  {
    ...{ name: 'the clock steps', loses: 'time' },
    run: async (field, random) => void (await stepClock(await aPrimary(field, random), 2_000)),
  },
  // For a while: a fence counter that is lost afterwards would start from a time that was before.
  ofPrimary('the clock steps back', [300, 2_500], (server) => stepClock(server, -2_000), 'time'),
  ofPrimary('eviction', [200, 800], (server) => fillMemory(server, 'allkeys-random'), 'any key'),
  network('a half-open line', [300, 2_500], (proxy) => proxy.halfOpen()),
  network('replies are lost', [50, 100], (proxy) => proxy.cutAfterRequest()),
  network('a refused line', [200, 1_500], (proxy) => proxy.refuse()),
];

const ofCluster = (
  name: string,
  loses: Loss,
  run: (field: ClusterEngine, random: Random) => Promise<unknown>,
): Fault => ({
  ...{ name, loses },
  async run({ engine }, random) {
    const field = engine as ClusterEngine;
    await run(field, random);
    await field.cluster.untilUp();
    await field.cluster.untilReplicated();
  },
});

const aMaster = async ({ cluster }: ClusterEngine, random: Random): Promise<RedisServer> =>
  random.pick(await cluster.masters());

const cluster: Fault[] = [
  ...everywhere,
  ofPrimary('SIGSTOP', [200, 900], freeze),
  ofCluster('a planned failover', 'nothing', async (field, random) =>
    switchMaster(field.cluster, await aMaster(field, random)),
  ),
  ofCluster('slots move', 'nothing', async (field, random) => {
    const from = random.between(0, 16_000);
    const slots = Array.from({ length: random.between(1, 40) }, (_, i) => from + i);
    await reshard(field.cluster, slots, await aMaster(field, random));
  }),
  ofCluster('a master is killed', 'the latest', async (field, random) =>
    (await loseMaster(field.cluster, await aMaster(field, random), crash)).heal(),
  ),
  ofCluster('a master stands still until it is replaced', 'the latest', async (field, random) =>
    (await loseMaster(field.cluster, await aMaster(field, random), freeze)).heal(),
  ),
];

const ofSentinel = (name: string, run: (field: SentinelEngine) => Promise<unknown>): Fault => ({
  ...{ name, loses: 'the latest' },
  async run({ engine }) {
    const field = engine as SentinelEngine;
    await run(field);
    await field.group.untilReplicated();
  },
});

const sentinel: Fault[] = [
  ...everywhere.filter(({ name }) => name !== 'CLIENT PAUSE'), // which its Sentinels would take for its death
  ofPrimary('SIGSTOP', [200, 600], freeze),
  ofSentinel('a planned switch', ({ group }) => switchPrimary(group)),
  ofSentinel('the primary is killed', async ({ group }) => (await losePrimary(group, crash)).heal()),
  ofSentinel('the primary stands still until it is replaced', async ({ group }) =>
    (await losePrimary(group, freeze)).heal(),
  ),
];

/** In one process there is nothing to break but the process. */
const memory: Fault[] = workers.filter(({ name }) => !name.includes('killed'));

export const FAULTS = { memory, redis: single, cluster, sentinel };

export type EngineName = keyof typeof FAULTS;
export type { SingleEngine };

export interface Step {
  readonly restMs: number;
  readonly fault: Fault;
  /** For what the fault itself leaves to chance. */
  readonly seed: number;
}

/** The faults of a run, one after the other, without end: the same for the same seed. */
export function* schedule(
  engine: EngineName,
  seed: number,
  only?: (fault: Fault) => boolean,
): Generator<Step> {
  const random = new Random(seed);
  const faults = FAULTS[engine].filter((fault) => only?.(fault) ?? true);
  for (;;)
    yield {
      restMs: random.between(500, 2_500),
      fault: random.pick(faults),
      seed: random.between(0, 2 ** 31),
    };
}
