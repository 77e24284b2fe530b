import { appendFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Engine,
  startClusterEngine,
  startSentinelEngine,
  startSingleEngine,
} from '../support/engines/engine.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { Crew } from './crew.js';
import { type FaultEvent, type HistoryEvent, nowMs, readHistory } from './history.js';
import { findLeftovers } from './leftovers.js';
import type { Programs } from './programs.js';
import { Random } from './random.js';
import { type EngineName, type Fault, type Field, schedule } from './schedule.js';
import { LOCK } from './settings.js';

export interface RunOptions {
  readonly engine: EngineName;
  readonly seconds: number;
  readonly seed: number;
  readonly programs: Programs;
  /** 3; on memory 1 */
  readonly workers?: number;
  readonly mutant?: string;
  readonly onlyOnce?: boolean;
  readonly only?: (fault: Fault) => boolean;
  /** Another server than the machine's. */
  readonly command?: readonly string[];
  readonly log?: (line: string) => void;
}

export interface Run {
  readonly history: HistoryEvent[];
  /** Processes that ended badly. */
  readonly failures: string[];
}

const startEngine = async (name: EngineName, command?: readonly string[]): Promise<Engine | undefined> => {
  switch (name) {
    case 'memory':
      return undefined;
    case 'redis':
      return startSingleEngine({ command });
    case 'cluster':
      return startClusterEngine({ command });
    case 'sentinel':
      return startSentinelEngine({ command });
  }
};

/** Workers work while faults happen; then all is healed, they end, and what they wrote down is read. */
export async function run(options: RunOptions): Promise<Run> {
  const engine = await startEngine(options.engine, options.command);
  const single = options.engine === 'redis' ? (await engine?.primaries())?.[0] : undefined;
  const proxy = single && (await startTcpProxy(single.port));
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-chaos-'));
  try {
    return await runOn(engine, proxy, folder, options);
  } finally {
    await proxy?.stop();
    await engine?.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function runOn(
  engine: Engine | undefined,
  proxy: TcpProxy | undefined,
  folder: string,
  options: RunOptions,
): Promise<Run> {
  const { seed, mutant, onlyOnce, programs } = options;
  const address = proxy?.url ?? engine?.address ?? null;
  const crew = new Crew(programs, folder, { address, seed, mutant, onlyOnce, startMs: nowMs() });
  const workers = options.workers ?? (engine ? 3 : 1);
  const field: Field = {
    engine: engine as Engine,
    proxy,
    killWorker: (random, at) => crew.kill(random, at),
    freezeWorker: (random, ms) => crew.freeze(random, ms),
    stallWorker: (random, at, ms) => crew.stallAt(random, at, ms),
  };
  const faults = join(folder, 'faults.jsonl');
  appendFileSync(faults, '');
  try {
    await Promise.all(Array.from({ length: workers }, (_, i) => crew.hire(i === 0)));
    await breakThings(field, options, (event) => appendFileSync(faults, JSON.stringify(event) + '\n'));
  } finally {
    await crew.dismiss();
  }
  // A lock that was held by a worker that was killed ends with its TTL.
  await sleep(LOCK.ttlMs + 500);
  const leftovers = engine ? await findLeftovers(engine) : [];
  return { history: [...readHistory([...crew.files, faults]), ...leftovers], failures: crew.failures };
}

async function breakThings(
  field: Field,
  { engine, seed, seconds, only, log = () => {} }: RunOptions,
  note: (event: FaultEvent) => void,
): Promise<void> {
  const endMs = nowMs() + seconds * 1_000;
  const watch = new PrimaryWatch(field.engine, note);
  for (const step of schedule(engine, seed, only)) {
    await sleep(Math.min(step.restMs, Math.max(0, endMs - nowMs())));
    await watch.look(true);
    if (nowMs() >= endMs) return;
    const { name, loses } = step.fault;
    const fromMs = nowMs();
    const worker = await step.fault.run(field, new Random(step.seed));
    const toMs = nowMs();
    await watch.look(loses === 'nothing');
    note({
      type: 'fault',
      name,
      loses,
      fromMs,
      toMs,
      ...(worker === undefined ? {} : { worker }),
    });
    log(`${((fromMs - endMs) / 1_000 + seconds).toFixed(1)} s: ${name}, ${Math.round(toMs - fromMs)} ms`);
  }
}

/** Sentinels on a busy machine may switch once more when a fault is over, which loses the latest as a fault does. */
class PrimaryWatch {
  #ports: string | undefined;
  #seenMs = nowMs();

  constructor(
    private readonly engine: Engine | undefined,
    private readonly note: (event: FaultEvent) => void,
  ) {}

  /** @param tells - whether a switch since the last look is nobody's doing */
  async look(tells: boolean): Promise<void> {
    const primaries = (await this.engine?.primaries().catch(() => [])) ?? [];
    const ports = primaries
      .map(({ port }) => port)
      .sort()
      .join();
    const toMs = nowMs();
    if (ports === '') return;
    if (tells && this.#ports !== undefined && ports !== this.#ports) {
      const name = 'the engine has switched by itself';
      this.note({ type: 'fault', name, loses: 'the latest', fromMs: this.#seenMs, toMs });
    }
    this.#ports = ports;
    this.#seenMs = toMs;
  }
}
