import { ConfigModule, ConfigService } from './config.js';
import { SyncGuardModule } from 'nestjs-syncguard';

export const forRoot = () =>
  SyncGuardModule.forRoot({
    redis: 'rediss://user:password@host:6379/0', // or ioredis options, a client of yours, { nodes } of a Cluster
    keyPrefix: 'syncguard', // two apps on one Redis: one each, or they share locks, and limits such as `POST /login`
    commandTimeoutMs: 1_000, // one try against Redis; finalize and abort of a budget try three times
    lock: { ttlMs: 30_000, timeoutMs: 5_000 }, // defaults of every lock
  });

export const forRootAsync = () =>
  SyncGuardModule.forRootAsync({
    imports: [ConfigModule],
    inject: [ConfigService],
    useFactory: (config: ConfigService) => ({ redis: config.getOrThrow('REDIS_URL') }),
  }); // or useClass / useExisting of a SyncGuardOptionsFactory
