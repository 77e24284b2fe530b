import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Random } from './random.js';
import type { Programs } from './programs.js';
import type { Await, Trap } from './traps.js';
import type { WorkerArguments } from './worker-arguments.js';

interface Member {
  readonly child: ChildProcess;
  readonly given: WorkerArguments;
}

/** A worker that does not end by then hangs. */
const LONGEST_END_MS = 30_000;

/** How long a worker has to come to the await at which it is to be killed. */
const TRAPPED_WITHIN_MS = 1_000;

/** By what the workers reach the server, in turn. */
const CONNECTIONS = [
  { ioredis: 'ioredis', ownClient: false },
  { ioredis: 'ioredis5', ownClient: true },
  { ioredis: 'ioredis5', ownClient: false },
  { ioredis: 'ioredis', ownClient: true },
] as const;

/** The processes of a run. One that is killed is followed by another. */
export class Crew {
  readonly files: string[] = [];
  readonly failures: string[] = [];
  #members: Member[] = [];
  #hired = 0;

  constructor(
    private readonly programs: Programs,
    private readonly folder: string,
    private readonly common: Omit<WorkerArguments, 'worker' | 'first' | 'file' | 'ownClient'>,
  ) {}

  /** Starts a worker, and waits until it works. */
  async hire(first: boolean): Promise<void> {
    const worker = this.#hired++;
    const file = join(this.folder, `worker-${worker}.jsonl`);
    const { ioredis, ownClient } = CONNECTIONS[worker % CONNECTIONS.length] as (typeof CONNECTIONS)[number];
    const given: WorkerArguments = { ...this.common, worker, first, file, ownClient };
    const child = spawn(process.execPath, [this.programs[ioredis], JSON.stringify(given)], {
      stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
    });
    child.on('exit', (code, signal) => {
      if (code !== 0 && signal !== 'SIGKILL')
        this.failures.push(`Worker ${worker} ended with ${code ?? signal}.`);
    });
    this.files.push(file);
    this.#members.push({ child, given });
    const works = await Promise.race([
      once(child, 'message').then(() => true),
      once(child, 'exit').then(() => false),
    ]);
    if (!works) throw new Error(`Worker ${worker} ended before it worked.`);
  }

  /** kill -9, at an await or at once, and another in its place. Gives who it was. */
  async kill(random: Random, at?: Await): Promise<number> {
    const victim = random.pick(this.#members);
    if (at) {
      const exit = once(victim.child, 'exit');
      victim.child.send({ at, ms: 0 } satisfies Trap);
      await Promise.race([exit, sleep(TRAPPED_WITHIN_MS)]);
    }
    await end(victim.child, 'SIGKILL');
    this.#members = this.#members.filter((member) => member !== victim);
    await this.hire(victim.given.first);
    return victim.given.worker;
  }

  async freeze(random: Random, ms: number): Promise<number> {
    const { child, given } = random.pick(this.#members);
    child.kill('SIGSTOP');
    await sleep(ms);
    child.kill('SIGCONT');
    return given.worker;
  }

  /** Has one stand still the next time that a call of it comes to an await. */
  async stallAt(random: Random, at: Await, ms: number): Promise<number> {
    const { child, given } = random.pick(this.#members);
    child.send({ at, ms } satisfies Trap);
    await sleep(ms);
    return given.worker;
  }

  /** All end what they are at. */
  async dismiss(): Promise<void> {
    await Promise.all(
      this.#members.map(async ({ child, given }) => {
        const ended = end(child, 'SIGTERM').then(() => true);
        if (await Promise.race([ended, sleep(LONGEST_END_MS, false, { ref: false })])) return;
        this.failures.push(`Worker ${given.worker} did not end.`);
        await end(child, 'SIGKILL');
      }),
    );
  }
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill(signal);
  await exit;
}
