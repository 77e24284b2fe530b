import { Controller, Get, Query } from '@nestjs/common';
import { CounterService, SecretService, SyncGuardModule } from '../../lib/index.js';
import { freshRedis } from '../support/redis.js';
import { type HttpApp, listen } from '../support/adapters.js';

@Controller()
class Page {
  constructor(
    private readonly secrets: SecretService,
    private readonly counters: CounterService,
  ) {}

  @Get('secret')
  peek(@Query('id') id: string): unknown {
    return this.secrets.peek(id);
  }

  @Get('counter')
  count(@Query('key') key: string): unknown {
    return this.counters.increment(key, { max: 9, windowMs: 60_000 });
  }
}

describe.each(['express', 'fastify'] as const)('an HTTP client of secrets and counters on %s', (adapter) => {
  let http: HttpApp;
  afterEach(() => http.app.close());

  const start = async (redis?: string): Promise<void> => {
    const imports = [SyncGuardModule.forRoot(redis === undefined ? {} : { redis })];
    http = await listen(adapter, { imports, controllers: [Page] }, undefined, (app) => app.useLogger(false));
  };
  const statusOf = async (path: string): Promise<number> => (await fetch(http.url + path)).status;

  it('is told 400 for what no id and no key can be', async () => {
    await start();
    const tooLong = encodeURIComponent('é'.repeat(300));
    expect(await statusOf(`/secret?id=${tooLong}`)).toBe(400);
    expect(await statusOf(`/counter?key=${tooLong}`)).toBe(400);
  });

  it('is told 500 where the key of a secret or a counter holds something else: it did nothing wrong', async () => {
    const redis = await freshRedis();
    await start(redis.url);
    const admin = redis.client();
    await http.app.get(SecretService).create({ id: 'mine', payload: 'p', views: 1 });
    expect(await statusOf('/secret?id=mine')).toBe(200);
    expect(await statusOf('/counter?key=mine')).toBe(200);
    for (const key of await admin.keys('*')) {
      await admin.del(key);
      await admin.rpush(key, 'theirs');
    }
    expect(await statusOf('/secret?id=mine')).toBe(500);
    expect(await statusOf('/counter?key=mine')).toBe(500);
  });
});
