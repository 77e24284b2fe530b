// limits.spec.ts
import { Controller, type INestApplication, Post, UnauthorizedException } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { minutes, RateLimit } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

@Controller()
class LoginController {
  @Post('login')
  @RateLimit('login') // a preset: the 5th failure in a minute is a 429, and blocks for a minute
  login(): void {
    throw new UnauthorizedException();
  }
}

describe('POST /login', () => {
  let app: INestApplication;
  let testing: SyncGuardTesting;

  beforeEach(async () => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardTestingModule.forRoot()],
      controllers: [LoginController],
    }).compile();
    testing = module.get(SyncGuardTesting);
    app = module.createNestApplication();
    await app.listen(0, '127.0.0.1');
  });

  afterEach(() => app.close());

  const login = async (): Promise<number> =>
    (await fetch(`${await app.getUrl()}/login`, { method: 'POST' })).status;

  it('blocks a guesser for a minute', async () => {
    const answers: number[] = [];
    for (let attempt = 0; attempt < 6; attempt++) answers.push(await login());
    expect(answers).toEqual([401, 401, 401, 401, 429, 429]);

    testing.clock.advance(minutes(1));
    expect(await login()).toBe(401);
  });

  it('refuses logins while failures cannot be counted', async () => {
    testing.makeUnreachable();
    expect(await login()).toBe(503);
    testing.restore();
    expect(await login()).toBe(401);
  });
});
