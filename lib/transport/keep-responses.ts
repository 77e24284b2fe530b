import type { HttpAdapterHost } from '@nestjs/core';
import { answering, type WatchedResponse } from '../core/current-response.js';

type Next = () => void;

interface Express {
  use(handle: (request: unknown, response: WatchedResponse, next: Next) => void): unknown;
}
interface Fastify {
  addHook(
    name: 'preHandler',
    handle: (request: unknown, reply: { readonly raw: WatchedResponse }, done: Next) => void,
  ): unknown;
}

const kept = new WeakSet<object>();

/** Has the handlers of an app know the response that they answer, by which streams see a client that does not read. */
export function keepResponses({ httpAdapter }: HttpAdapterHost): void {
  const server = httpAdapter?.getInstance<Partial<Express & Fastify>>();
  if (!server || kept.has(server)) return;
  kept.add(server);
  if (httpAdapter.getType() === 'fastify')
    server.addHook?.('preHandler', (_request, { raw }, done) => answering(raw, done));
  else server.use?.((_request, response, next) => answering(response, next));
}
