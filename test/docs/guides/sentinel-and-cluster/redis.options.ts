// redis.options.ts
import { Module } from '@nestjs/common';
import { SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';

/** Reads `host:port,host:port`. */
const nodesOf = (list: string): { host: string; port: number }[] =>
  list.split(',').map((node) => {
    const { hostname, port } = new URL(`redis://${node}`);
    return { host: hostname, port: Number(port) };
  });

export function redisFrom(env: NodeJS.ProcessEnv): SyncGuardOptions['redis'] {
  const { REDIS_SENTINELS, REDIS_NAME = 'main', REDIS_CLUSTER, REDIS_PASSWORD: password } = env;
  if (REDIS_SENTINELS) return { sentinels: nodesOf(REDIS_SENTINELS), name: REDIS_NAME, password };
  if (REDIS_CLUSTER)
    return { nodes: nodesOf(REDIS_CLUSTER), options: { redisOptions: { password } } };
  return env.REDIS_URL; // One server, or memory.
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [
    SyncGuardModule.forRootAsync({ useFactory: () => ({ redis: redisFrom(process.env) }) }),
  ],
})
export class AppModule {}
