import { ask, post, stage } from './instances.js';

it('docs/guides/share-secret.md: a button opens it once, and Redis never sees it', async () => {
  const { SecretsModule } = await import('./share-secret/secrets.js');
  const urls = [(await on.start(SecretsModule)).url, (await on.start(SecretsModule)).url] as const;
  const created = await post(`${urls[0]}/secrets`, { text: 'the door code is 4711' });
  const { link, receipt } = created.body as { link: string; receipt: string };

  for (let i = 0; i < 3; i++)
    // A chat program fetches the link.
    expect((await ask(urls[1] + link)).body).toMatchObject({ ok: true, viewsRemaining: 1 });
  const client = on.redis.client();
  for (const key of await client.keys('*'))
    expect(String(await client.call('DUMP', key))).not.toContain('4711');

  const reveals = await Promise.all(
    Array.from({ length: 8 }, (_, i) => post(`${urls[i % 2]}${link}/reveal`)),
  );
  const opened = reveals.filter(({ status }) => status === 200);
  expect(opened.map(({ body }) => body)).toEqual([{ text: 'the door code is 4711' }]);
  expect(opened[0]?.headers.get('cache-control')).toBe('no-store');
  expect(reveals.filter(({ status }) => status === 410)).toHaveLength(7);
  expect((await ask(`${urls[1]}/secrets/status/${receipt}`)).body).toMatchObject({
    state: 'burned',
    ended: 'used',
  });
  expect((await post(`${urls[0]}/secrets/nobody-made-this/reveal`)).status).toBe(404);
});

const on = stage({ SEAL_KEY: '5e'.repeat(32) });
