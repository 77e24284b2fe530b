// Each contestant is a file, and runs in a warm process of its own, so that rounds go A B C A B C.
import { fork } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { BESIDE } from './package.mjs';

const BENCH = resolve(import.meta.dirname, '..');

export class Contestant {
  #calls = new Map();
  #last = 0;

  constructor(worker, file, env = {}, execArgv = []) {
    this.file = file;
    this.process = fork(join(BENCH, 'workers', worker), file ? [file] : [], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      env: { ...process.env, ...env },
      execArgv,
    });
    process.once('exit', () => this.stop());
    this.process.on('message', ({ id, value, error }) => {
      const call = this.#calls.get(id);
      this.#calls.delete(id);
      if (error) call?.reject(new Error(error));
      else call?.resolve(value);
    });
    this.process.on('exit', (code, signal) => {
      for (const call of this.#calls.values())
        call.reject(new Error(`the process ended with ${code ?? signal}`));
      this.#calls.clear();
    });
  }

  ask(job, args = {}) {
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
      this.process.send({ id, job, args });
    });
  }

  stop() {
    this.process.kill('SIGKILL');
  }
}

/** Answers the questions of a {@link Contestant}, in its process. */
export function serve(jobs) {
  process.on('message', async ({ id, job, args }) => {
    try {
      process.send({ id, value: await jobs[job](args) });
    } catch (error) {
      process.send({ id, error: String(error?.stack ?? error) });
    }
  });
  process.on('disconnect', () => process.exit());
}

/** Starts the contestants of a folder. `always` run even where `only` names others. */
export async function startContestants(folder, worker, { only, beside, always = [] }) {
  const wanted = (name) =>
    only.length === 0 || always.includes(name) || only.some((start) => name.startsWith(start));
  const files = readdirSync(join(BENCH, 'contestants', folder)).filter(
    (file) => !file.startsWith('_') && wanted(file.replace('.mjs', '')),
  );
  const started = [];
  const start = async (file, before) => {
    const path = join(BENCH, 'contestants', folder, file);
    const contestant = new Contestant(worker, path, before ? { BENCH_PACKAGE: BESIDE } : {});
    try {
      const about = await contestant.ask('about');
      Object.assign(contestant, about, { name: before ? `${about.name}, before` : about.name });
      started.push(contestant);
    } catch (error) {
      console.error(`left out: ${folder}/${file}: ${error.message.split('\n')[0]}`);
      contestant.stop();
    }
  };
  for (const file of files) {
    await start(file, false);
    if (beside && file.startsWith('ours') && !file.includes('autopipelining')) await start(file, true);
  }
  return started;
}

/** Asks every contestant in each round, each round beginning with another one. The first round warms up. */
export async function inRounds(contestants, rounds, measure) {
  const results = [];
  for (let round = -1; round < rounds; round++) {
    const result = {};
    for (let i = 0; i < contestants.length; i++) {
      const contestant = contestants[(round + 1 + i) % contestants.length];
      result[contestant.name] = await measure(contestant, round < 0);
    }
    if (round >= 0) results.push(result);
    console.error(`  round ${round + 1} of ${rounds}`);
  }
  return results;
}
