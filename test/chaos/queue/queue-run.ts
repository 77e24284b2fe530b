import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Engine } from '../../support/engines/engine.js';
import { killClients } from '../../support/engines/faults.js';
import { nowMs } from '../history.js';
import { Random } from '../random.js';
import { sampleLocks } from './queue-sampler.js';
import {
  type Order,
  PROCESSES,
  type QueueEvent,
  type QueueHistory,
  type QueueWorkerArguments,
  type Trouble,
} from './queue-history.js';

export interface QueueRun {
  readonly engine: Engine;
  readonly program: string;
  readonly seconds: number;
  readonly seed: number;
  readonly log?: (line: string) => void;
}

interface Member {
  readonly worker: number;
  readonly child: ChildProcess;
}

/** Processes with several callers each wait for the same locks, while one after the other is not well. */
export async function runQueue({
  engine,
  program,
  seconds,
  seed,
  log = () => {},
}: QueueRun): Promise<QueueHistory> {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-queue-'));
  const files: string[] = [];
  const failures: string[] = [];
  const troubles: Trouble[] = [];
  const random = new Random(seed);
  let members: Member[] = [];

  async function hire(): Promise<void> {
    const worker = files.length;
    const file = join(folder, `${worker}.jsonl`);
    files.push(file);
    const given: QueueWorkerArguments = { worker, file, address: engine.address, seed };
    const child = spawn(process.execPath, [program, JSON.stringify(given)], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    child.on('exit', (code, signal) => {
      if (code !== 0 && signal !== 'SIGKILL') failures.push(`Worker ${worker} ended with ${code ?? signal}.`);
    });
    members.push({ worker, child });
    await once(child, 'message');
  }
  const order = ({ child }: Member, given: Order): void => void child.send(given);
  const end = async (victim: Member): Promise<void> => {
    const exit = once(victim.child, 'exit');
    victim.child.kill('SIGKILL');
    await exit;
  };

  const faults: Record<string, (member: Member, ms: number) => Promise<void>> = {
    async stop({ child }, ms) {
      child.kill('SIGSTOP');
      await sleep(ms);
      child.kill('SIGCONT');
    },
    async kill(member) {
      await end(member);
      members = members.filter((each) => each !== member);
      await hire();
    },
    async block(member, ms) {
      order(member, { what: 'block', ms });
      await sleep(ms);
    },
    async 'silence main'(member, ms) {
      order(member, { what: 'silence main', ms });
      await sleep(ms);
    },
    async 'silence listener'(member, ms) {
      order(member, { what: 'silence listener', ms });
      await sleep(ms);
    },
    async 'kill connections'() {
      await killClients(random.pick(await engine.primaries()));
    },
  };

  const sampler = sampleLocks(engine.address);
  try {
    for (let i = 0; i < PROCESSES; i++) await hire();
    const endMs = nowMs() + seconds * 1_000;
    while (nowMs() < endMs) {
      await random.pause(200, 1_500);
      const name = random.pick(Object.keys(faults));
      const member = random.pick(members);
      const ms = random.between(300, 3_000);
      const fromMs = nowMs();
      await faults[name]?.(member, ms);
      const worker = name === 'kill connections' ? undefined : member.worker;
      troubles.push({ name, worker, fromMs, toMs: nowMs() });
      log(
        `${Math.round(seconds - (endMs - fromMs) / 1_000)} s: ${name} of ${worker ?? 'all'}, ${Math.round(nowMs() - fromMs)} ms`,
      );
    }
    await sleep(1_000);
    for (const member of members) order(member, { what: 'stop', ms: 0 });
    await Promise.all(
      members.map(async (member) => {
        const exit = member.child.exitCode === null ? once(member.child, 'exit') : Promise.resolve();
        if (await Promise.race([exit.then(() => true), sleep(30_000, false, { ref: false })])) return;
        failures.push(`Worker ${member.worker} did not end.`);
      }),
    );
    const events = files.flatMap((file) =>
      readFileSync(file, 'utf8')
        .split('\n')
        .slice(0, -1)
        .map((line) => JSON.parse(line) as QueueEvent),
    );
    return { events, troubles, held: await sampler.stop(), failures };
  } finally {
    await sampler.stop();
    for (const member of members)
      if (member.child.exitCode === null && !member.child.killed) await end(member);
    rmSync(folder, { recursive: true, force: true });
  }
}
