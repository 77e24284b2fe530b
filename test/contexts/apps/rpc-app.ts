import type { INestMicroservice, ModuleMetadata } from '@nestjs/common';
import { ClientProxyFactory, type MicroserviceOptions, Transport } from '@nestjs/microservices';
import { Test } from '@nestjs/testing';
import type { AddressInfo, Server } from 'node:net';
import { catchError, firstValueFrom, lastValueFrom, map, type Observable, of, toArray } from 'rxjs';
import type { Reply } from './reply.js';

export interface RpcClient {
  /** Sends to a `@MessagePattern()` and gives the last answer, or the error. */
  send(pattern: unknown, data?: unknown): Promise<Reply>;
  /** The same for a handler that answers with a stream: all that came, the error last if there was one. */
  sendForAll(pattern: unknown, data?: unknown): Promise<Reply[]>;
  /** Hands an event over to the transport: it is not told when the `@EventPattern()` has run. */
  emit(pattern: unknown, data?: unknown): Promise<void>;
  close(): Promise<void>;
}

export interface RpcApp extends RpcClient {
  readonly app: INestMicroservice;
}

/** TCP on a free port of this machine. */
export const TCP: MicroserviceOptions = {
  transport: Transport.TCP,
  options: { host: '127.0.0.1', port: 0 },
};

/**
 * A microservice over TCP.
 *
 * @example
 * const app = await rpcApp({ imports: [SyncGuardModule.forRoot()], controllers: [OrdersController] });
 * expect(await app.send('pay', '7')).toEqual({ answer: 'paid' });
 */
export async function rpcApp(metadata: ModuleMetadata): Promise<RpcApp> {
  const module = await Test.createTestingModule(metadata).compile();
  const app = module.createNestMicroservice<MicroserviceOptions>(TCP);
  await app.listen();
  const client = await rpcClientOf(app);
  return {
    ...client,
    app,
    async close() {
      await client.close();
      await app.close();
    },
  };
}

/** A client of a microservice that listens on TCP. */
export async function rpcClientOf(app: INestMicroservice): Promise<RpcClient> {
  const { port } = app.unwrap<Server>().address() as AddressInfo;
  const proxy = ClientProxyFactory.create({ transport: Transport.TCP, options: { host: '127.0.0.1', port } });
  await proxy.connect();
  const replies = (pattern: unknown, data: unknown): Observable<Reply> =>
    proxy.send<unknown>(pattern, data ?? '').pipe(
      map((answer) => ({ answer })),
      catchError((exception: unknown) => of({ exception })),
    );
  return {
    send: (pattern, data) => lastValueFrom(replies(pattern, data)),
    sendForAll: (pattern, data) => firstValueFrom(replies(pattern, data).pipe(toArray())),
    emit: (pattern, data) =>
      lastValueFrom(proxy.emit<void>(pattern, data ?? ''), { defaultValue: undefined }),
    async close() {
      await proxy.close();
    },
  };
}
