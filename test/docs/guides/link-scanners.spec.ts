import { SecretService } from 'nestjs-syncguard';
import { post, stage } from './instances.js';

it('docs/guides/link-scanners.md: nothing that a scanner does opens it, and the code does, once', async () => {
  const { LinksModule } = await import('./link-scanners/links.js');
  const { app, url } = await on.start(LinksModule);
  const secrets = app.get(SecretService);
  const create = async () => {
    const { body } = await post(`${url}/links`, { payload: 'the door code is 4711', code: '480113' });
    return body as { link: string; receipt: string };
  };
  const { link, receipt } = await create();

  const looks: RequestInit[] = [
    {},
    { method: 'HEAD' },
    { method: 'OPTIONS' },
    { headers: { 'sec-purpose': 'prefetch;prerender' } },
    { headers: { 'user-agent': 'Slackbot-LinkExpanding 1.0' } },
  ];
  for (const init of looks) expect(await (await fetch(url + link, init)).text()).not.toContain('4711');
  const open = (code?: unknown, at = link) => post(`${url}${at}/open`, { code });
  for (const code of [undefined, '', 'test@example.org', 480113, ['480113'], { $ne: '' }, '4801134'])
    expect((await open(code)).status).toBe(400);
  expect(await secrets.status(receipt)).toMatchObject({ state: 'live', viewsUsed: 0, viewedAtMs: null });

  expect((await open('000000')).status).toBe(404);
  expect(await open('480113')).toMatchObject({ status: 200, body: { payload: 'the door code is 4711' } });
  expect((await open('480113')).status).toBe(410);
  expect(await secrets.status(receipt)).toMatchObject({ state: 'burned', ended: 'used' });

  const guessed = await create();
  for (const code of ['000000', '111111', '222222'])
    expect((await open(code, guessed.link)).status).toBe(404);
  expect((await open('480113', guessed.link)).status).toBe(429);
  expect(await secrets.status(guessed.receipt)).toMatchObject({ state: 'live', viewsUsed: 0 });
});

const on = stage();
