import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { Body, Controller, Module, Param, Post, UnauthorizedException } from '@nestjs/common';
import {
  type AbuseLimiterService,
  type BudgetService,
  createRedisBackend,
  type LockService,
  minutes,
  Once,
  type OnceService,
  RateLimit,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../../support/eventually.js';
import { ROOT } from '../sources.js';
import { type Answer, post, stage } from './instances.js';

const GUIDE = readFileSync(join(ROOT, 'docs/guides/something-is-wrong.md'), 'utf8');

/** What `open()` puts where who types finds it. */
type Shell = typeof globalThis & {
  app: { close(): Promise<void> };
  locks: LockService;
  once: OnceService;
  limiter: AbuseLimiterService;
  budgets: BudgetService;
};
const shell = globalThis as Shell;

/** What is another one each time: fences, times, processes, ids. */
const VARYING =
  /(?<=fence: ')\d{15}|(?<=Ms: )\d+|(?<=pid: )\d+|(?<=host: ')[^']+|(?<=process: ')[\w-]{16}|[0-9a-f]{8}-[0-9a-f-]{27}/g;
const shape = (text: string): string => text.replace(VARYING, '#').replace(/\s+/g, '');

/** Types what a night of the guide has typed, and compares what comes with what the guide shows. */
async function type(night: string, given: Record<string, string> = {}): Promise<void> {
  const section = GUIDE.split('\n## ').find((each) => each.startsWith(night)) ?? '';
  const [, typed = ''] = /```text\n([^]+?)```/.exec(section) ?? [];
  const lines = typed.split(/^> /m).slice(1);
  expect(lines.length).toBeGreaterThan(1);
  const now = new Map(Object.entries(given));
  for (const each of lines) {
    const [line = '', ...shown] = each.split('\n');
    const input = [...now].reduce((text, [before, after]) => text.replaceAll(before, after), line);
    const found = await evaluate(input);
    const [expected, actual] = [shown.join('\n'), found === undefined ? '' : inspect(found, { depth: 9 })];
    expect([line, shape(actual)]).toStrictEqual([line, shape(expected)]);
    const values = actual.match(VARYING) ?? [];
    for (const [i, before] of (expected.match(VARYING) ?? []).entries())
      if (before.length > 10) now.set(before, values[i] as string);
  }
}

/** As the shell does: a name that is made stays. */
function evaluate(line: string): Promise<unknown> {
  const [, names, value] = /^const (\S+|\[.+?\]) = (.+)$/.exec(line) ?? [];
  const code =
    names === undefined ? `return (${line})` : `${names.replace(/(\w+)/, 'globalThis.$1')} = ${value}`;
  // eslint-disable-next-line @typescript-eslint/no-implied-eval
  return (new Function(`return (async () => { ${code} })()`) as () => Promise<unknown>)();
}

const said = ({ body }: Answer): string => {
  const { code, message } = body as { code: string; message: string };
  return `${code}: ${message}`.replace(/for \d+ ms/, 'for 200 ms');
};
const text = GUIDE.replace(/\s+/g, ' ');

describe('docs/guides/something-is-wrong.md', () => {
  const on = stage();
  let url: string;
  /** Ends all bodies that hang. */
  let end: () => void;

  beforeEach(async () => {
    const { open, syncGuard } = await import('./something-is-wrong/operator.js');
    const never = new Promise<void>((resolve) => (end = resolve));

    @Controller()
    class InvoicesController {
      @Post('invoices/:id')
      @WithLock('invoice:{0}', { timeoutMs: 200 })
      send(@Param('id') _id: string) {
        return never;
      }

      @Post('login')
      @RateLimit('login')
      login(@Body() _body: unknown) {
        throw new UnauthorizedException();
      }

      @Post('answers')
      @WithBudget({ root: () => 'acme', scopes: () => ['org'], estimate: () => 600, actual: () => 0 })
      answer() {
        return never;
      }

      @Post('orders/:id/pay')
      @Once({ key: 'params.id', afterCrash: 'refuse' })
      pay() {
        return never;
      }
    }
    @Module({ imports: [syncGuard], controllers: [InvoicesController] })
    class ShopModule {}

    ({ url } = await on.start(ShopModule));
    await open();
  });
  afterEach(async () => {
    end();
    await shell.app.close();
  });

  it('a lock is stuck', async () => {
    const hanging = post(`${url}/invoices/7`);
    await eventually(async () => expect(await shell.locks.holder('invoice:7')).toHaveLength(1));
    const refused = await post(`${url}/invoices/7`);
    expect(refused.status).toBe(423);
    expect(text).toContain(said(refused));
    const waiting = shell.locks.lock(() => 'let in', { key: 'invoice:7', timeoutMs: minutes(5) });
    await eventually(async () => expect(await shell.locks.waiters('invoice:7')).toHaveLength(1));
    await type('A lock is stuck');
    expect(await waiting).toBe('let in');
    end();
    expect(await hanging).toMatchObject({ status: 500, body: { code: 'LockLost' } });
  });

  it('a pod hangs', async () => {
    // It hears nothing, and renews nothing.
    const hung = createRedisBackend(on.redis.client());
    await hung.acquire({ key: 'report', ttlMs: minutes(10) });
    const waiting = shell.locks.lock(() => 'let in', { key: 'report', timeoutMs: minutes(5) });
    await eventually(async () => expect(await shell.locks.waiters('report')).toHaveLength(1));
    await type('A pod hangs');
    expect(await waiting).toBe('let in');
  });

  it('a customer is locked out', async () => {
    const tries = (): Promise<Answer> => post(`${url}/login`, { email: 'ann@example.org' });
    for (let i = 0; i < 5; i++) await tries();
    const refused = await tries();
    expect(refused.status).toBe(429);
    expect(text).toContain((refused.body as { message: string }).message);
    await type('A customer is locked out', { '203.0.113.7': '127.0.0.1' });
    // The process of the app has noted the block for a second.
    await eventually(async () => expect((await tries()).status).toBe(401));
  });

  it('a tenant has no budget left', async () => {
    const answering = post(`${url}/answers`);
    const { budgets } = shell;
    await eventually(async () => expect((await budgets.list({ root: 'acme' })).records).toHaveLength(1));
    const refused = await post(`${url}/answers`);
    expect(refused.status).toBe(429);
    expect(text).toContain(said(refused));
    await type('A tenant has no budget left');
    expect(await budgets.balance({ root: 'acme', scope: 'org' })).toMatchObject([{ available: 2_000 }]);
    end();
    await answering;
  });

  it('nobody knows whether it was paid', async () => {
    const paying = post(`${url}/orders/7/pay`);
    await eventually(async () => expect((await shell.once.list()).items).toHaveLength(1));
    on.redis.clock.advance(31_000);
    const refused = await post(`${url}/orders/7/pay`);
    expect(refused.status).toBe(409);
    expect(text).toContain(said(refused));
    await type('Nobody knows whether it was paid');
    expect(await post(`${url}/orders/7/pay`)).toMatchObject({ status: 200, body: { receipt: 'ch_1' } });
    end();
    expect(await paying).toMatchObject({ status: 409, body: { code: 'OnceLost' } });
  });
});
