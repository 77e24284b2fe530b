import 'reflect-metadata';

import { Controller, Get, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import type { AddressInfo, Server } from 'node:net';
import { Session } from 'node:inspector/promises';
import { relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  AbuseLimiterService,
  BudgetService,
  LockService,
  RateLimit,
  SecretService,
  SyncGuardModule,
} from '../../../lib/index.js';

// Prints, for each operation, the files of lib in which a function ran: what someone opens who follows a call.
// `node -r ./test/support/run-ts.cjs test/package/trace/main.ts <port of Redis>`
const LIB = resolve(__dirname, '../../../lib');
const WARM_CALLS = 3;

@Controller()
class Pages {
  @Get('limited')
  @RateLimit({ name: 'page', limit: 1_000, windowMs: 60_000, keyBy: 'ip' })
  limited(): string {
    return 'ok';
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      budget: { limits: [{ scope: 'user', period: { every: 'month' }, limit: 1_000_000 }] },
      redis: { host: '127.0.0.1', port: Number(process.argv[2]) },
    }),
  ],
  controllers: [Pages],
})
class App {}

async function filesOf(session: Session, operation: () => Promise<unknown>): Promise<string[]> {
  for (let call = 0; call < WARM_CALLS; call++) await operation();
  await session.post('Profiler.takePreciseCoverage'); // Sets the counts to zero.
  await operation();
  const { result } = await session.post('Profiler.takePreciseCoverage');
  return result
    .filter(({ functions }) => functions.some(({ functionName, ranges }) => functionName && ranges[0]?.count))
    .flatMap(({ url }) => (url.startsWith('file:') ? [fileURLToPath(url)] : [url]))
    .filter((file) => file.startsWith(LIB))
    .map((file) => relative(LIB, file))
    .sort();
}

async function main(): Promise<void> {
  const app = await NestFactory.create(App, { logger: ['error', 'warn'] });
  await app.listen(0, '127.0.0.1');
  const { port } = (app.getHttpServer() as Server).address() as AddressInfo;
  const locks = app.get(LockService);
  const limiter = app.get(AbuseLimiterService);
  const budgets = app.get(BudgetService);
  const secrets = app.get(SecretService);
  const ids = await Promise.all(
    Array.from({ length: WARM_CALLS + 1 }, () => secrets.create({ payload: 'x', views: 1 })),
  );
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  const policy = { name: 'trace', limit: 1_000, windowMs: 60_000 };
  let nth = 0;
  const operations: Record<string, () => Promise<unknown>> = {
    view: () => secrets.view((ids[nth++] as { id: string }).id),
    acquire: () => locks.acquire({ key: `trace:${nth++}`, ttlMs: 60_000 }),
    check: () => limiter.check('someone', policy),
    reserve: () => budgets.reserve({ scopes: ['user:1'], amount: 1 }),
    '@RateLimit': () => fetch(`http://127.0.0.1:${port}/limited`).then((answer) => answer.text()),
  };
  for (const [name, operation] of Object.entries(operations))
    console.log(JSON.stringify({ name, files: await filesOf(session, operation) }));
  await app.close();
}

void main();
