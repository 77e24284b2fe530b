import { Controller, Module, Post, UnauthorizedException } from '@nestjs/common';
import { AbuseLimiterService, normalizeAddress, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { post, stage } from './instances.js';

describe('docs/guides/login.md', () => {
  const on = stage();
  const open = async () => {
    const { LoginModule } = await import('./login/login.js');
    const urls = [(await on.start(LoginModule)).url, (await on.start(LoginModule)).url];
    let calls = 0;
    const login = (email: string, password: string) =>
      post(`${urls[calls++ % 2]}/login`, { email, password });
    return { login };
  };

  it('answers the fifth failure with 429, counted by two instances together, for that account', async () => {
    const { login } = await open();
    const statuses: number[] = [];
    for (let i = 0; i < 5; i++) statuses.push((await login('ann@example.org', 'no')).status);
    expect(statuses).toEqual([401, 401, 401, 401, 429]);
    const denied = await login('ann@example.org', 'correct');
    expect([denied.status, denied.headers.get('retry-after')]).toEqual([429, '60']);
    expect((await login('bob@example.org', 'correct')).status).toBe(200);

    on.redis.clock.advance(61_000);
    const later = await open(); // The others remember the block by their own clock, which has not moved.
    expect((await later.login('ann@example.org', 'correct')).status).toBe(200);
  });

  it('lets somebody in again whose block is lifted by the values as they are counted', async () => {
    const { LoginModule } = await import('./login/login.js');
    const { url, app } = await on.start(LoginModule);
    const login = async (password: string): Promise<number> =>
      (await post(`${url}/login`, { email: ' Ann@example.org', password })).status;
    for (let i = 0; i < 5; i++) await login('no');
    expect(await login('correct')).toBe(429);
    const key = [
      ['ip', normalizeAddress('127.0.0.1')],
      ['body.email', ' Ann@example.org'.trim().toLowerCase()],
    ];
    await app.get(AbuseLimiterService).unblock(JSON.stringify(key), 'login');
    expect(await login('correct')).toBe(200);
  });

  it('keeps all limits if the account is in another field', async () => {
    const { limits } = await import('../rate-limits/limits.js');
    @Controller()
    class Login {
      @Post('login')
      @RateLimit('login')
      login(): void {
        throw new UnauthorizedException();
      }
    }
    @Module({ imports: [SyncGuardModule.forRoot({ limits })], controllers: [Login] })
    class App {}
    const { url } = await on.start(App);
    const statuses: number[] = [];
    const guess = async (username: string): Promise<void> =>
      void statuses.push((await post(`${url}/login`, { username })).status);
    for (let i = 0; i < 5; i++) await guess('ann');
    for (let i = 0; i < 46; i++) await guess(`user ${i}`);
    expect(statuses.slice(0, 6)).toEqual([401, 401, 401, 401, 429, 401]);
    expect(statuses.slice(-2)).toEqual([429, 429]); // The address has failed fifty times.
  });

  it('takes plus addresses for one account by `normalize`, and any value', async () => {
    const { normalize } = await import('./login/normalize.js');
    @Controller()
    class Login {
      @Post('login')
      @RateLimit('login')
      login(): void {
        throw new UnauthorizedException();
      }
    }
    @Module({ imports: [SyncGuardModule.forRoot({ limit: { normalize } })], controllers: [Login] })
    class App {}
    const { url } = await on.start(App);
    const guess = async (email: unknown): Promise<number> => (await post(`${url}/login`, { email })).status;
    const spellings = ['ann@example.org', 'Ann+1@example.org', 'ann+2+3@EXAMPLE.org', ' ann@example.org'];
    for (const email of spellings) expect(await guess(email)).toBe(401);
    expect(await guess('ann+4@example.org')).toBe(429);
    for (const odd of [{}, ['a', 'b'], 7, 'no address']) expect(await guess(odd)).toBe(401);
  });

  it('counts nothing if a wrong password is answered with 200', async () => {
    @Controller()
    class Login {
      @Post('login')
      @RateLimit('login')
      login() {
        return { error: 'wrong' };
      }
    }
    @Module({ imports: [SyncGuardModule.forRoot()], controllers: [Login] })
    class App {}
    const { url } = await on.start(App);
    for (let i = 0; i < 60; i++)
      expect((await post(`${url}/login`, { email: 'ann@example.org' })).status).toBe(201);
  });

  it('checks no more guesses at the same moment than the limit lets in', async () => {
    const { login } = await open();
    const answers = await Promise.all(Array.from({ length: 50 }, () => login('ann@example.org', 'no')));
    expect(answers.filter(({ status }) => status === 401).length).toBeLessThan(5);
  });

  it('refuses logins while nobody can count', async () => {
    const { login } = await open();
    await on.redis.kill();
    expect((await login('ann@example.org', 'correct')).status).toBe(503);
  });
});
