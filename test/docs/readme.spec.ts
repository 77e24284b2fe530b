import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { INestApplication } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { listen } from '../support/adapters.js';
import { eventually } from '../support/eventually.js';
import { AppModule } from './readme/app.js';
import { ROOT } from './sources.js';

const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
const blocks = [...readme.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, language = '', code = '']) => ({
  language,
  code,
}));
const examples = blocks.filter(({ language }) => language === 'ts').map(({ code }) => code);

describe('README.md', () => {
  it('is at most 160 lines long, and begins with the two commands', () => {
    expect(readme.split('\n').length).toBeLessThanOrEqual(161);
    expect(blocks[0]?.code.split('\n').map((line) => line.split('#')[0]?.trim())).toEqual([
      'npm ci && npm start',
      'npm ci && npm test',
      '',
    ]);
  });

  it('has examples of at most 12 lines, as they run here', () => {
    const app = readFileSync(join(__dirname, 'readme/app.ts'), 'utf8');
    const [main, ...others] = examples;
    expect(main).toBe(readFileSync(join(__dirname, 'readme/main.ts'), 'utf8'));
    expect(others).toHaveLength(4);
    for (const code of others) {
      expect(code.trimEnd().split('\n').length).toBeLessThanOrEqual(12);
      expect(app).toContain(code);
    }
  });

  it('links to nothing that is not published with it', () => {
    const published = /^(docs\/([\w-]+|(adr|guides)\/[\w-]+)\.md|CHANGELOG\.md)$/;
    const links = [...readme.matchAll(/\]\((?!\w+:)([^)#]+)/g)].map(([, path = '']) => path);
    expect(links.length).toBeGreaterThan(10);
    expect(links.filter((path) => !published.test(path))).toEqual([]);
  });

  it('shows a main.ts that runs as pasted', async () => {
    delete process.env.REDIS_URL;
    const created: INestApplication[] = [];
    const create = NestFactory.create.bind(NestFactory) as (module: unknown) => Promise<INestApplication>;
    const spy = jest.spyOn(NestFactory, 'create').mockImplementation(async (module: unknown) => {
      const app = await create(module);
      created.push(app);
      // Another port than 3000, which may be taken.
      const listen = () => app.listen(0);
      return { enableShutdownHooks: () => ({ listen }) } as never;
    });
    try {
      await import('./readme/main.js');
      // Throws until the app listens.
      const url = await eventually(() => (created[0] as INestApplication).getUrl());
      const answers: number[] = [];
      for (let i = 0; i < 4; i++)
        answers.push((await fetch(`${url}/orders/7/pay`, { method: 'POST' })).status);
      expect(answers).toEqual([201, 201, 201, 429]);
    } finally {
      spy.mockRestore();
      await created[0]?.close();
    }
  });

  it.each(['express', 'fastify'] as const)('shows what an app does, on %s', async (adapter) => {
    const { app, url } = await listen(adapter, { imports: [AppModule] });
    const post = async (path: string, body: object = {}): Promise<[number, Record<string, unknown>]> => {
      const headers = { 'Content-Type': 'application/json' };
      const response = await fetch(`${url}/${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
      return [response.status, (await response.json()) as Record<string, unknown>];
    };
    try {
      expect(await post('orders/7/pay')).toEqual([
        201,
        { id: '7', fence: expect.stringMatching(/^\d{15}$/) as string },
      ]);

      const statuses: number[] = [];
      for (let i = 0; i < 5; i++)
        statuses.push((await post('login', { email: 'ann@example.org', password: 'no' }))[0]);
      expect(statuses).toEqual([401, 401, 401, 401, 429]);

      const ask = { user: 'ada', prompt: 'hi', maxTokens: 900 };
      expect(await post('ai', ask)).toEqual([201, { text: 'You said: hi', tokens: 2 }]);
      expect((await post('ai', { ...ask, maxTokens: 1_000 }))[0]).toBe(429);

      const [, { id }] = await post('secrets', { sealed: 'x' });
      expect(await post(`secrets/${String(id)}/reveal`)).toMatchObject([
        201,
        { ok: true, payload: 'x', burned: true },
      ]);
      expect(await post(`secrets/${String(id)}/reveal`)).toEqual([201, { ok: false, reason: 'burned' }]);
    } finally {
      await app.close();
    }
  });
});
