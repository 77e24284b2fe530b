import type { INestApplication } from '@nestjs/common';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test, type TestingModuleBuilder } from '@nestjs/testing';

export interface HttpApp {
  readonly app: INestApplication;
  readonly url: string;
}

/**
 * An app that listens on a free port, on one of Nest's two HTTP adapters. It closes what clients left open: `fetch`
 * opens connections that it may never use, and a server would wait for them.
 */
export async function listen(
  adapter: 'express' | 'fastify',
  metadata: Parameters<typeof Test.createTestingModule>[0],
  configure: (builder: TestingModuleBuilder) => TestingModuleBuilder = (builder) => builder,
  prepare: (app: INestApplication) => void = () => {},
): Promise<HttpApp> {
  const module = await configure(Test.createTestingModule(metadata)).compile();
  const app =
    adapter === 'fastify'
      ? module.createNestApplication(new FastifyAdapter({ forceCloseConnections: true }))
      : module.createNestApplication({ forceCloseConnections: true });
  prepare(app);
  await app.listen(0, '127.0.0.1');
  return { app, url: await app.getUrl() };
}
