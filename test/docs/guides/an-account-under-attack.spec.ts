import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Controller, Module, Post, UnauthorizedException } from '@nestjs/common';
import { days, hours, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { ROOT } from '../sources.js';
import { ask, post, stage } from './instances.js';

const PAGE = readFileSync(join(ROOT, 'docs/guides/an-account-under-attack.md'), 'utf8');
const ANN = 'ann@example.org';

describe('docs/guides/an-account-under-attack.md', () => {
  const on = stage();

  it('lets the owner in again after a reset, from the address that was locked out', async () => {
    const { AccountsModule, store } = await import('./an-account-under-attack/accounts.js');
    const { url } = await on.start(AccountsModule);
    const login = async (email: string, password: string): Promise<number> =>
      (await post(`${url}/login`, { email, password })).status;
    for (let i = 0; i < 5; i++) await login(ANN, 'no');
    expect(await login(ANN, 'old')).toBe(429);
    expect((await post(`${url}/reset`, { email: ANN, code: '000000', password: 'x' })).status).toBe(401);
    const reset = await post(`${url}/reset`, { email: ANN, code: store.code, password: 'new' });
    expect([reset.status, reset.body]).toEqual([201, { lifted: 1 }]);
    expect(await login(ANN, 'new')).toBe(201);
  });

  it('sends an account three mails an hour, and an address ten', async () => {
    const { AccountsModule, store } = await import('./an-account-under-attack/accounts.js');
    const { url } = await on.start(AccountsModule);
    const forgot = async (email: string): Promise<number> => (await post(`${url}/forgot`, { email })).status;
    const statuses = [];
    for (const email of [ANN, ANN, ANN, ANN]) statuses.push(await forgot(email));
    expect(statuses).toEqual([202, 202, 202, 429]);
    expect(store.mails).toBe(3);
    for (let i = 0; i < 9; i++) statuses.push(await forgot(`nobody-${i}@example.org`));
    expect(statuses.filter((status) => status === 202)).toHaveLength(10);
  });

  describe('the figures', () => {
    let judged = 0;
    @Controller()
    class Judges {
      @Post('login')
      @RateLimit('login')
      login(): never {
        judged++;
        throw new UnauthorizedException();
      }

      @Post('reset')
      @RateLimit('otp')
      reset(): never {
        judged++;
        throw new UnauthorizedException();
      }
    }
    @Module({
      imports: [SyncGuardModule.forRoot({ limit: { address: 'headers.x-address' } })],
      controllers: [Judges],
    })
    class App {}

    /** Guesses for so long, and waits as it is told. Returns how many guesses were judged. */
    async function guess(
      path: string,
      ms: number,
      next: (guess: number) => [address: string, email: string],
    ) {
      const { url } = await on.start(App);
      const now = Date.now.bind(Date);
      let skippedMs = 0;
      const clock = jest.spyOn(Date, 'now').mockImplementation(() => now() + skippedMs);
      judged = 0;
      try {
        for (let i = 0; skippedMs < ms; i++) {
          const [address, email] = next(i);
          const headers = { 'x-address': address };
          const answer = await ask(`${url}/${path}`, { method: 'POST', headers, body: { email } });
          if (answer.status === 429) skippedMs += Number(answer.headers.get('retry-after')) * 1_000;
        }
      } finally {
        clock.mockRestore();
      }
      return judged;
    }

    const one = '203.0.113.7';
    const any = (i: number): string => `10.0.${(i >> 8) & 255}.${i & 255}`;
    const AN_HOUR = ['an hour', hours(1)] as const;
    const A_DAY = ['a day', days(1)] as const;
    it.each([
      ['one address, one account', A_DAY, () => [one, ANN]],
      ['one address, any accounts', A_DAY, (i) => [one, `v${i}@example.org`]],
      ['any addresses, one account', AN_HOUR, (i) => [any(i), ANN]], // A day takes minutes.
    ] as [string, readonly [string, number], (guess: number) => [string, string]][])(
      '%s: so many',
      async (who, [unit, ms], next) => {
        const [login, reset] = [await guess('login', ms, next), await guess('reset', days(1), next)];
        expect(PAGE).toContain(`| ${who} | ${login} ${unit} | ${reset} a day |`);
      },
    );
  });
});
