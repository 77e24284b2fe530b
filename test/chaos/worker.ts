import { closeSync, openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { NestFactory } from '@nestjs/core';
import { SyncGuardModule } from '../../lib/index.js';
import { clientFor } from './client.js';
import type { HistoryEvent } from './history.js';
import { nowMs } from './history.js';
import { applyMutant } from './mutants.js';
import { COMMAND_TIMEOUT_MS, BUDGET, KEY_PREFIX, RATE } from './settings.js';
import { startTasks } from './tasks.js';
import { setTrap, type Trap } from './traps.js';
import type { WorkerArguments } from './worker-arguments.js';

// One process of an app under test. It works until it is told to stop, and writes down what it asked and was told.

const TICK_MS = 20;
const LATE_MS = 150;

const given = JSON.parse(process.argv[2] ?? '') as WorkerArguments;
const file = openSync(given.file, 'a');
const write = (event: HistoryEvent): void => void writeSync(file, JSON.stringify(event) + '\n');

process.on('unhandledRejection', (reason) => {
  const detail = reason instanceof Error ? (reason.stack ?? reason.message) : String(reason);
  write({ type: 'unhandled', worker: given.worker, atMs: nowMs(), detail });
});

/** Notes when this process stood still: its calls cannot have settled then. */
function watchTheLoop(): void {
  let lastMs = nowMs();
  setInterval(() => {
    const atMs = nowMs();
    if (atMs - lastMs > TICK_MS + LATE_MS)
      write({ type: 'late', worker: given.worker, sinceMs: lastMs, atMs });
    lastMs = atMs;
  }, TICK_MS).unref();
}

async function main(): Promise<void> {
  if (given.mutant) applyMutant(given.mutant);
  watchTheLoop();
  const module = SyncGuardModule.forRoot({
    ...(given.address === null ? {} : { redis: given.ownClient ? clientFor(given.address) : given.address }),
    closeClient: given.ownClient,
    keyPrefix: KEY_PREFIX,
    commandTimeoutMs: COMMAND_TIMEOUT_MS,
    lock: { retryDelayMs: 10 },
    limits: { api: { ...RATE, onError: 'closed' } },
    limit: { commandTimeoutMs: COMMAND_TIMEOUT_MS },
    budget: {
      limits: [{ scope: 'user', period: { every: 'year' }, limit: BUDGET.limit }],
      reaper: { everyMs: 1_000 },
    },
    shutdown: { drainMs: 4_000 },
  });
  const app = await NestFactory.createApplicationContext(module, { logger: false });
  const tasks = startTasks(app, given, write);
  const dismissed = new Promise((resolve) => process.once('SIGTERM', resolve));
  process.on('message', (trap: Trap) => setTrap(trap));
  process.send?.('at work');
  await dismissed;
  await tasks.stop();
  await app.close();
  // Whatever is on its way still, an undo or a late reply, has time to come to nothing, or to be heard.
  await sleep(500);
  write({ type: 'ended', worker: given.worker, atMs: nowMs() });
  closeSync(file);
  process.exit(0);
}

// A driver that is gone is not worked for.
process.once('disconnect', () => process.exit(1));
main().catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
