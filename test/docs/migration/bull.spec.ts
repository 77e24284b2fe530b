import { Test } from '@nestjs/testing';
import { freshRedis } from '../../support/redis.js';

it('a job that finds no room makes the queue wait as long as that takes', async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
  const { MailModule, Mailer } = await import('./bull/mailer.js');
  const app = await Test.createTestingModule({ imports: [MailModule] }).compile();
  await app.init();
  try {
    const mailer = app.get(Mailer);
    const waits: number[] = [];
    const queue = {
      rateLimit: (ms: number) => Promise.resolve(void waits.push(ms)),
      rateLimitError: () => new Error('RATE_LIMIT'),
    };
    await mailer.send('ann', queue);
    await mailer.send('bob', queue);
    await expect(mailer.send('cid', queue)).rejects.toThrow('RATE_LIMIT');
    expect(waits).toEqual([expect.any(Number)]);
    expect(waits[0]).toBeLessThanOrEqual(1_000);
    expect(mailer.sent).toEqual(['ann', 'bob']);
  } finally {
    await app.close();
    delete process.env.REDIS_URL;
  }
});
