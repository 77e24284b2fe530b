import type { INestMicroservice, ModuleMetadata } from '@nestjs/common';
import type { MicroserviceOptions } from '@nestjs/microservices';
import { type HttpApp, listen } from '../../support/adapters.js';
import { type RpcClient, rpcClientOf, TCP } from './rpc-app.js';
import { type SocketKind, type Sockets, socketsTo, speak } from './socket-app.js';

/** One app that listens for HTTP, on sockets, and for messages over TCP. */
export interface HybridApp extends HttpApp {
  readonly sockets: Sockets;
  readonly rpc: RpcClient;
  close(): Promise<void>;
}

/**
 * @param options - `inheritAppConfig`: what Nest wants to have the app's global guards, filters and so on
 * (`APP_GUARD` too) apply to its microservice
 */
export async function hybridApp(
  adapter: 'express' | 'fastify',
  sockets: SocketKind,
  metadata: ModuleMetadata,
  { inheritAppConfig = true }: { inheritAppConfig?: boolean } = {},
): Promise<HybridApp> {
  let microservice: INestMicroservice | undefined;
  const { app, url } = await listen(adapter, metadata, undefined, (created) => {
    microservice = speak(created, sockets).connectMicroservice<MicroserviceOptions>(TCP, {
      inheritAppConfig,
    });
  });
  await app.startAllMicroservices();
  const rpc = await rpcClientOf(microservice as INestMicroservice);
  const clients = socketsTo(url, sockets);
  return {
    app,
    url,
    sockets: clients,
    rpc,
    async close() {
      clients.close();
      await rpc.close();
      await app.close();
    },
  };
}
