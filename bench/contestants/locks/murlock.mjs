import 'reflect-metadata';
import { randomUUID } from 'node:crypto';
import { MurLockService } from 'murlock';
import { url } from '../../harness/redis.mjs';

const noContext = { registerContext() {}, setClientID() {}, get() {} };

export default {
  name: 'murlock 4.4',
  async open() {
    const service = new MurLockService(
      {
        redisOptions: { url: url() },
        wait: 1000,
        maxAttempts: 3,
        blocking: false,
        logLevel: 'none',
        ignoreUnlockFail: false,
        failFastOnRedisError: false,
      },
      noContext,
    );
    service.log = () => {}; // Its log is not what is measured.
    await service.onModuleInit();
    return {
      async acquire(name) {
        const key = `ml:${name}`;
        const id = randomUUID();
        await service.acquireLock(key, id, 30_000);
        return { key, id };
      },
      release: ({ key, id }) => service.releaseLock(key, id),
    };
  },
};
