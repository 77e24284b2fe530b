// A process that has just started: when it answers first, and after how many requests it is warm (G3).
import { execFile } from 'node:child_process';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { apart } from '../harness/cores.mjs';
import { judging } from '../harness/goals.mjs';
import { median, nowUs, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';
import { cpuUsed, NAMES, startApp } from './guard.mjs';

const REQUESTS = join(resolve(import.meta.dirname, '../workers'), 'requests.mjs');
const VARIANTS = ['none', 'throttler-redis', 'ours-redis'];
const OURS = NAMES['ours-redis'];
const [WARM, LONG, SLICE] = [3_000, 100_000, 3_000];

const ask = (target, count) =>
  promisify(execFile)(...apart(process.execPath, [REQUESTS, String(target.port), String(count)]));

/** What a request takes of the process, in microseconds of CPU. */
async function slice(target, count) {
  const before = await cpuUsed(target);
  await ask(target, count);
  return ((await cpuUsed(target)) - before) / count;
}

async function life(variant, before, { sized }) {
  const startedAt = nowUs();
  const target = await startApp('fastify', variant, before);
  await ask(target, 1);
  const firstMs = (nowUs() - startedAt) / 1e3;
  const bootCpuMs = (await cpuUsed(target)) / 1e3;
  const [warm, long, each] = [WARM, LONG, SLICE].map(sized);
  const coldUs = await slice(target, warm);
  const earlyUs = await slice(target, each);
  await ask(target, long - warm - each);
  const lateUs = await slice(target, each);
  target.app.kill('SIGKILL');
  return { firstMs, bootCpuMs, coldUs, earlyUs, lateUs };
}

export async function run({ redis, options }) {
  const contestants = VARIANTS.flatMap((variant) => {
    const isBeside = options.beside && variant.startsWith('ours');
    return [[variant, false], ...(isBeside ? [[variant, true]] : [])];
  });
  const nameOf = ([variant, before]) => (before ? `${NAMES[variant]}, before` : NAMES[variant]);
  const rounds = [];
  for (let round = 0; round < options.roundsOf(3); round++) {
    const result = {};
    for (const contestant of contestants) {
      await redis.flushdb();
      result[nameOf(contestant)] = await life(...contestant, options);
    }
    rounds.push(result);
    console.error(`  process ${round + 1} of each`);
  }
  return report(contestants.map(nameOf), rounds);
}

function report(names, rounds) {
  const value = (name, pick) => typical(rounds, name, pick);
  const early = (name) => value(name, ({ earlyUs, lateUs }) => earlyUs / lateUs);
  const added = (round, name, pick) => pick(round[name]) - pick(round[NAMES.none]);
  const addedEarly = (name) =>
    median(
      rounds.map(
        (round) => added(round, name, ({ earlyUs }) => earlyUs) / added(round, name, ({ lateUs }) => lateUs),
      ),
    );
  const judge = (what, figure) =>
    judging(OURS, names)(
      'G3',
      `CPU after 3,000 requests (x after 100,000), ${what}`,
      figure,
      { atMost: 1.2 },
      {
        peers: [NAMES['throttler-redis'], NAMES.none],
      },
    );
  const goals = [judge('of a request', early), judge('that the guard adds', addedEarly)];
  const rows = names.map((name) => ({
    guard: name,
    'first answer after ms': value(name, ({ firstMs }) => firstMs),
    'CPU until then ms': value(name, ({ bootCpuMs }) => bootCpuMs),
    'the first 3,000, CPU us': value(name, ({ coldUs }) => coldUs),
    'the next 3,000, CPU us': value(name, ({ earlyUs }) => earlyUs),
    'after 100,000, CPU us': value(name, ({ lateUs }) => lateUs),
    'x after 100,000': early(name),
  }));
  return { goals, tables: [table('A new process', rows)], pictures: {}, data: { rounds } };
}
