import { Test } from '@nestjs/testing';
import {
  CounterService,
  type RedisConnectionOptions,
  SecretService,
  SyncGuardError,
  SyncGuardModule,
} from '../../lib/index.js';
import { freshRedis, workerRedis } from '../support/redis.js';

const outcomeOf = (call: Promise<unknown>): Promise<string> =>
  call.then(
    () => 'done',
    (error: unknown) => (error instanceof SyncGuardError ? String(error.code) : String(error)),
  );

describe.each<[string, () => RedisConnectionOptions | undefined]>([
  ['memory', () => undefined],
  ['a connection of its own', () => `redis://127.0.0.1:${workerRedis().port}`],
  ['a client of the user, which stays open', () => workerRedis().client()],
])('secrets and counters on %s', (kind, redis) => {
  it('are done in the turn of close(), and closed after it', async () => {
    await freshRedis();
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ redis: redis() })],
    }).compile();
    await module.init();
    const [secrets, counters] = [module.get(SecretService), module.get(CounterService)];
    const { id, receipt } = await secrets.create({ payload: 'p', ttlMs: 60_000 });
    const all = (): Promise<string[]> =>
      Promise.all(
        [
          secrets.create({ payload: 'p', ttlMs: 60_000 }),
          secrets.view(id),
          secrets.peek(id),
          secrets.status(receipt),
          secrets.confirm(id, 'view-1'),
          secrets.release(id, 'view-1'),
          secrets.burn(receipt),
          counters.increment('exports', { max: 9, windowMs: 60_000 }),
          counters.peek('exports'),
          counters.reset('exports'),
        ].map(outcomeOf),
      );
    const inTurn = [all(), module.close(), all()] as const;
    // A connection that closes waits for its answers, though not for ever.
    const outcomes = kind === 'memory' ? ['done'] : ['done', 'ServiceUnavailable'];
    for (const outcome of [...(await inTurn[0]), ...(await inTurn[2])]) expect(outcomes).toContain(outcome);
    await inTurn[1];
    expect(await all()).toStrictEqual(Array(10).fill('ServiceUnavailable'));
  });
});
