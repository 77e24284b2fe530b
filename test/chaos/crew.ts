import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Random } from './random.js';
import type { Programs } from './programs.js';
import type { WorkerArguments } from './worker-arguments.js';

interface Member {
  readonly child: ChildProcess;
  readonly given: WorkerArguments;
}

/** A worker that does not end by then hangs. */
const LONGEST_END_MS = 30_000;

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

  /** kill -9, and another in its place. Gives who it was. */
  async kill(random: Random): Promise<number> {
    const victim = random.pick(this.#members);
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
