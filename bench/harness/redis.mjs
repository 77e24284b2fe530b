// A redis-server for the bench alone, and small readers of its INFO.
import { spawn } from 'node:child_process';
import { connect as openSocket, createServer } from 'node:net';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import Redis from 'ioredis';
import { apart } from './cores.mjs';

export const HOST = '127.0.0.1';
const port = () => Number(process.env.BENCH_PORT);
export const url = () => `redis://${HOST}:${port()}`;
export const address = () => ({ host: HOST, port: port() });

export const connect = (options = {}) => new Redis({ ...address(), maxRetriesPerRequest: null, ...options });

async function freePort() {
  const server = createServer().listen(0, HOST);
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  return port;
}

/** Starts a server. All processes that are started later find it through their environment. */
export async function startServer() {
  process.env.BENCH_PORT = String(await freePort());
  const args = ['--port', process.env.BENCH_PORT, '--bind', HOST, '--save', '', '--appendonly', 'no'];
  const server = spawn(...apart('redis-server', args), { stdio: 'ignore', cwd: '/tmp' });
  server.once('error', (error) => {
    throw new Error('redis-server was not found. On Debian: apt-get install redis-server', { cause: error });
  });
  process.once('exit', () => server.kill());
  const client = connect({ retryStrategy: () => 50 });
  client.on('error', () => {});
  await client.ping();
  return client;
}

const number = (text, field) => Number(new RegExp(`^${field}:([0-9.]+)`, 'm').exec(text)?.[1] ?? NaN);

async function totals(client) {
  const text = await client.info('everything');
  return {
    commands: number(text, 'total_commands_processed'),
    inBytes: number(text, 'total_net_input_bytes'),
    outBytes: number(text, 'total_net_output_bytes'),
    reads: number(text, 'total_reads_processed'),
    cpu: number(text, 'used_cpu_user') + number(text, 'used_cpu_sys'),
  };
}

/** Microseconds in the server for commands that clients sent: scripts, and a plain SET or the like. */
async function scriptMicroseconds(client) {
  const text = await client.info('commandstats');
  let us = 0;
  for (const [, usec] of text.matchAll(/^cmdstat_eval(?:sha)?:calls=\d+,usec=(\d+)/gm)) us += Number(usec);
  return us;
}

/** Runs `fn` between two readings of the server and of this process. All costs are for one operation. */
export async function metered(client, operations, fn) {
  await client.config('RESETSTAT');
  const before = await totals(client);
  const cpu = process.cpuUsage();
  const startedAt = process.hrtime.bigint();
  const value = await fn();
  const wallUs = Number(process.hrtime.bigint() - startedAt) / 1e3;
  const { user, system } = process.cpuUsage(cpu);
  const after = await totals(client);
  const n = typeof operations === 'function' ? operations(value) : operations;
  const each = (field, own = 0) => (after[field] - before[field] - own) / n;
  return {
    value,
    perSecond: n / (wallUs / 1e6),
    wallUs: wallUs / n,
    nodeCpuUs: (user + system) / n,
    redisCpuUs: each('cpu') * 1e6,
    scriptUs: (await scriptMicroseconds(client)) / n,
    // One INFO of these readings is counted among them.
    commands: each('commands', 1),
    reads: each('reads', 1),
    inBytes: each('inBytes'),
    outBytes: each('outBytes'),
  };
}

/** What all keys take in the server. */
export async function memoryUsed(client) {
  let bytes = 0;
  let keys = 0;
  let cursor = '0';
  do {
    const [next, page] = await client.scan(cursor, 'COUNT', 1000);
    cursor = next;
    for (const key of page) bytes += await client.memory('USAGE', key, 'SAMPLES', 0);
    keys += page.length;
  } while (cursor !== '0');
  return { bytes, keys };
}

/** Counts what clients send in `ms`, as MONITOR shows it. What scripts call is left out. */
export async function countCommands(ms) {
  const socket = openSocket(address());
  let seen = '';
  socket.setEncoding('utf8').on('data', (lines) => (seen += lines));
  socket.write('MONITOR\r\n');
  await sleep(ms);
  socket.destroy();
  return seen.split('\r\n').filter((line) => /^\+\d/.test(line) && !line.includes(' lua] ')).length;
}
