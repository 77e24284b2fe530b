import type { INestApplication, Type } from '@nestjs/common';
import { Logger } from '@nestjs/common';
import type { TestingModuleBuilder } from '@nestjs/testing';
import { SyncGuardModule } from 'nestjs-syncguard';
import { type HttpApp, listen } from '../../support/adapters.js';
import { type RedisServer, startRedisServer } from '../../support/redis-server.js';

/** What a guide's code runs on: a Redis of its own, and instances of its app. */
export interface Stage {
  readonly redis: RedisServer;
  /** Starts instances of the app on the one Redis. */
  start(module: Type, configure?: (builder: TestingModuleBuilder) => TestingModuleBuilder): Promise<HttpApp>;
}

/**
 * Sets the stage for a guide: its code is imported after REDIS_URL is there. Logs are kept quiet, and Redis is given time.
 *
 * @param env - what else its code reads from the environment
 */
export function stage(env: Record<string, string> = {}): Stage {
  let redis: RedisServer;
  const apps: INestApplication[] = [];
  const before = { ...process.env };
  beforeAll(async () => {
    redis = await startRedisServer();
    Object.assign(process.env, { REDIS_URL: redis.url, ...env });
    for (const level of ['log', 'warn', 'error'] as const)
      jest.spyOn(Logger.prototype, level).mockImplementation(() => {});
    giveTime(5_000);
  });
  afterEach(async () => {
    await Promise.all(apps.splice(0).map((app) => app.close()));
    if (redis.pid)
      await redis
        .client({ retryStrategy: () => null })
        .flushall()
        .catch(() => {});
    redis.clock.reset();
  });
  afterAll(async () => {
    await redis.stop();
    process.env = before;
    jest.restoreAllMocks();
  });
  return {
    get redis() {
      return redis;
    },
    async start(module, configure) {
      const http = await listen('express', { imports: [module] }, configure);
      apps.push(http.app);
      return http;
    },
  };
}

/** A guide has the default deadlines, which a busy machine misses now and then. Whatever the guide says itself stays. */
function giveTime(commandTimeoutMs: number): void {
  const forRoot = SyncGuardModule.forRoot.bind(SyncGuardModule);
  jest
    .spyOn(SyncGuardModule, 'forRoot')
    .mockImplementation((given = {}) =>
      forRoot({ commandTimeoutMs, ...given, limit: { commandTimeoutMs, ...given.limit } }),
    );
}

export interface Answer {
  readonly status: number;
  readonly body: unknown;
  readonly headers: Headers;
}

/** Asks an app, and reads its answer as JSON where it is that. */
export async function ask(
  url: string,
  { headers, ...init }: Omit<RequestInit, 'body'> & { body?: unknown; headers?: Record<string, string> } = {},
): Promise<Answer> {
  const response = await fetch(url, {
    ...init,
    headers: { 'content-type': 'application/json', ...headers },
    body: init.body === undefined ? undefined : JSON.stringify(init.body),
  });
  const text = await response.text();
  const isJson = /json/.test(response.headers.get('content-type') ?? '');
  return { status: response.status, headers: response.headers, body: isJson ? JSON.parse(text) : text };
}

export const post = (url: string, body?: unknown): Promise<Answer> => ask(url, { method: 'POST', body });
