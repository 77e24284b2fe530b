import type { INestApplication } from '@nestjs/common';
import { createApp, type SampleOptions } from '../../sample/all/create-app.js';
import { closeApp } from '../support/close-app.js';
import { workerRedis } from '../support/redis.js';

/** The combinations that the sample is tested on. */
export const SETTINGS = [
  { adapter: 'express', backend: 'memory' },
  { adapter: 'express', backend: 'redis' },
  { adapter: 'fastify', backend: 'memory' },
  { adapter: 'fastify', backend: 'redis' },
] as const;

const apps: INestApplication[] = [];

export const OPERATOR_PASSWORD = 'a password of tests';

/** Starts the sample app on a free port. */
export async function start(
  options: Partial<SampleOptions>,
): Promise<{ app: INestApplication; url: string }> {
  const app = await createApp({ logger: false, operatorPassword: OPERATOR_PASSWORD, ...options });
  apps.push(app);
  await app.listen(0);
  return { app, url: await app.getUrl() };
}

/** Closes what a spec file has started. */
export async function closeAll(): Promise<void> {
  await Promise.all(apps.splice(0).map(closeApp));
}

let passedMs = 0;

/** Lets time pass for the server, and in this process for the memory backend and the deny cache. */
export function pass(ms: number): void {
  passedMs += ms;
  workerRedis().clock.advance(ms);
}

/** Has the clocks of this process go on by what `pass` says, until the mocks of jest are restored. */
export function clocksCanPass(): void {
  const { now: wallClock } = Date;
  const steadyClock = performance.now.bind(performance);
  jest.spyOn(Date, 'now').mockImplementation(() => wallClock() + passedMs);
  jest.spyOn(performance, 'now').mockImplementation(() => steadyClock() + passedMs);
}
