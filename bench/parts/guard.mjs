// The guard over HTTP: G1 and G2. wrk with 64 connections and 1,000 clients; a Nest process for each variant.
import { execFile, fork } from 'node:child_process';
import { once } from 'node:events';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { apart } from '../harness/cores.mjs';
import { judging } from '../harness/goals.mjs';
import { BESIDE } from '../harness/package.mjs';
import { median, ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const FOLDER = resolve(import.meta.dirname, '../contestants/guards');
const VARIANTS = ['none', 'throttler-memory', 'throttler-redis', 'ours-memory', 'ours-redis'];
export const NAMES = {
  none: 'no guard',
  'throttler-memory': 'throttler 6, in memory',
  'throttler-redis': 'throttler 6 + nest-lab, Redis',
  'ours-memory': 'nestjs-syncguard, in memory',
  'ours-redis': 'nestjs-syncguard, Redis',
};

export async function startApp(platform, variant, before) {
  const env = { ...process.env, ...(before && { BENCH_PACKAGE: BESIDE }) };
  const app = fork(join(FOLDER, 'app.mjs'), [platform, variant], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    env,
  });
  process.once('exit', () => app.kill('SIGKILL'));
  const [{ port }] = await Promise.race([once(app, 'message'), once(app, 'exit').then(() => [{}])]);
  if (!port) throw new Error(`${platform} with ${variant} did not start`);
  return { name: before ? `${NAMES[variant]}, before` : NAMES[variant], variant, app, port };
}

export async function cpuUsed({ app }) {
  app.send('cpu');
  const [{ cpu }] = await once(app, 'message');
  return cpu.user + cpu.system;
}

async function load(target, seconds) {
  const before = await cpuUsed(target);
  const script = join(FOLDER, 'clients.lua');
  const url = `http://127.0.0.1:${target.port}/hello`;
  const args = ['-t1', '-c64', `-d${seconds}s`, '--latency', '-s', script, url];
  const { stdout } = await promisify(execFile)(...apart('wrk', args));
  const requests = Number(/(\d+) requests in/.exec(stdout)[1]);
  const cpu = await cpuUsed(target);
  const [, p99, unit] = /99%\s+([\d.]+)(us|ms|s)/.exec(stdout);
  return {
    perSecond: Number(/Requests\/sec:\s+([\d.]+)/.exec(stdout)[1]),
    p99Ms: Number(p99) * { us: 1e-3, ms: 1, s: 1e3 }[unit],
    cpuUs: (cpu - before) / requests,
    refused: Number(/Non-2xx.*: (\d+)/.exec(stdout)?.[1] ?? 0),
  };
}

async function race(platform, { redis, options }) {
  const apps = [];
  for (const variant of VARIANTS) {
    apps.push(await startApp(platform, variant, false));
    if (options.beside && variant.startsWith('ours')) apps.push(await startApp(platform, variant, true));
  }
  const rounds = [];
  for (let round = -1; round < options.roundsOf(5); round++) {
    const result = {};
    for (let i = 0; i < apps.length; i++) {
      const target = apps[(round + 1 + i) % apps.length];
      await redis.flushdb();
      result[target.name] = await load(target, round < 0 || options.quick ? 1 : 2);
    }
    if (round >= 0) rounds.push(result);
    console.error(`  ${platform}, round ${round + 1}`);
  }
  for (const { app } of apps) app.kill('SIGKILL');
  return { rounds, names: apps.map(({ name }) => name) };
}

export async function run(bench) {
  const fastify = await race('fastify', bench);
  const express = await race('express', bench);
  const added = ({ rounds }, name) =>
    median(rounds.map((round) => round[name].cpuUs - round[NAMES.none].cpuUs));
  const speed = ({ rounds }, name) => ratio(rounds, name, NAMES.none, (each) => each.perSecond);
  const [memory, redis] = [NAMES['ours-memory'], NAMES['ours-redis']];
  const [peerMemory, peerRedis] = [NAMES['throttler-memory'], NAMES['throttler-redis']];
  /** Of a guard of ours on a platform, beside that of throttler. */
  const judge = (raced, ours, ...rest) => judging(ours, raced.names)(...rest);
  const addedBeside = (what, ours, peer, atMost) =>
    judge(
      fastify,
      ours,
      'G1',
      what,
      (name) => added(fastify, name),
      { atMost },
      {
        peers: [peer],
        times: (name, other) => added(fastify, name) / added(fastify, other),
      },
    );
  const share = (raced, what, atLeast) =>
    judge(raced, redis, 'G2', what, (name) => speed(raced, name), { atLeast }, { peers: [peerRedis] });
  const goals = [
    addedBeside('CPU added on Fastify, in memory (us)', memory, peerMemory, 0.9),
    addedBeside('CPU added on Fastify, Redis (us)', redis, peerRedis, 0.6),
    share(fastify, 'Fastify, Redis: requests (x no guard)', 0.58),
    share(express, 'Express, Redis: requests (x no guard)', 0.8),
  ];
  const rows = (raced) =>
    raced.names.map((name) => ({
      guard: name,
      'requests/s': typical(raced.rounds, name, (each) => each.perSecond),
      'x no guard': speed(raced, name),
      'p99 ms': typical(raced.rounds, name, (each) => each.p99Ms),
      'node CPU us': typical(raced.rounds, name, (each) => each.cpuUs),
      'added CPU us': added(raced, name),
      refused: Math.max(...raced.rounds.map((round) => round[name].refused)),
    }));
  const tables = [
    table('Guard on Fastify, 1,000 clients', rows(fastify)),
    table('Guard on Express, 1,000 clients', rows(express)),
  ];
  const bars = (raced) =>
    raced.names
      .filter((name) => name !== NAMES.none)
      .map((name) => ({
        name,
        role: name.startsWith('nestjs') ? 'ours' : 'peer',
        value: added(raced, name),
      }));
  const pictures = {
    'guard-fastify': {
      title: 'CPU that a guard adds to a request, Fastify',
      note: 'microseconds of Node, 1,000 clients; shorter is better',
      bars: bars(fastify),
    },
    'guard-express': {
      title: 'CPU that a guard adds to a request, Express',
      note: 'microseconds of Node, 1,000 clients; shorter is better',
      bars: bars(express),
    },
  };
  return { goals, tables, pictures, data: { fastify: fastify.rounds, express: express.rounds } };
}
