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
