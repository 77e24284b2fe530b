// Its persistence layer for Redis, as it runs outside of Lambda too.
import { IdempotencyConfig, makeIdempotent } from '@aws-lambda-powertools/idempotency';
import { CachePersistenceLayer } from '@aws-lambda-powertools/idempotency/cache';
import { createClient } from 'redis';
import { url } from '../../harness/redis.mjs';

export default {
  name: 'Powertools 2.35',
  async open() {
    process.env.AWS_LAMBDA_FUNCTION_NAME ??= 'bench';
    const client = await createClient({ url: url() }).connect();
    const persistenceStore = new CachePersistenceLayer({ client });
    const config = new IdempotencyConfig({ eventKeyJmesPath: 'key' });
    config.registerLambdaContext({ getRemainingTimeInMillis: () => 30_000 });
    const pay = makeIdempotent(async ({ body }) => body(), { persistenceStore, config });
    const call = (key, body) => pay({ key, body });
    return { run: call, replay: call };
  },
};
