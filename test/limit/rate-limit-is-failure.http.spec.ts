import 'reflect-metadata';
import type { ServerResponse } from 'node:http';
import {
  type ArgumentsHost,
  BadRequestException,
  Body,
  type CallHandler,
  type CanActivate,
  Catch,
  Controller,
  type ExceptionFilter,
  type ExecutionContext,
  Get,
  HttpException,
  ForbiddenException,
  GoneException,
  HttpCode,
  type INestApplication,
  InternalServerErrorException,
  Logger,
  type NestInterceptor,
  NotFoundException,
  ParseIntPipe,
  Post,
  Query,
  Redirect,
  Res,
  type Type,
  UnauthorizedException,
  UnprocessableEntityException,
  UseFilters,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common';
import { type CallEnd, type LimitPolicy, minutes, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { map, type Observable } from 'rxjs';
import { freshRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

const FAILURES = {
  count: 'failure',
  temp: { windowMs: minutes(1), threshold: 3, blockMs: minutes(1) },
} satisfies LimitPolicy;
const TWO = { limit: 2, windowMs: minutes(1) };

let asked: [unknown, CallEnd][] = [];

const REFUSALS: Record<string, new () => Error> = {
  '400': BadRequestException,
  '401': UnauthorizedException,
  '403': ForbiddenException,
  '404': NotFoundException,
  '410': GoneException,
  '422': UnprocessableEntityException,
  '500': InternalServerErrorException,
};

interface Response {
  redirect(...args: unknown[]): void;
  status(code: number): void;
  send(body: object): void;
}

interface RawResponse extends Pick<ServerResponse, 'writeHead' | 'end' | 'statusCode'> {
  hijack?(): void;
  readonly raw?: Pick<ServerResponse, 'writeHead' | 'end' | 'statusCode'>;
}

/** Express takes the status first, Fastify last. */
const redirectTo = (response: Response, url: string): void =>
  response.redirect(...('sent' in response ? [url, 302] : [302, url]));

class WrongCode extends Error {}

@Catch(WrongCode)
class AnswersRefused implements ExceptionFilter {
  catch(_error: WrongCode, host: ArgumentsHost): void {
    const response = host.switchToHttp().getResponse<Response>();
    response.status(422);
    response.send({});
  }
}

@Catch(WrongCode)
class LeadsBack implements ExceptionFilter {
  catch(_error: WrongCode, host: ArgumentsHost): void {
    redirectTo(host.switchToHttp().getResponse<Response>(), '/login?error');
  }
}

class Unwraps implements NestInterceptor {
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return next.handle().pipe(
      map(() => {
        throw new UnprocessableEntityException();
      }),
    );
  }
}

/** Judges the guess itself, as guards of Passport do, and ends as the body says. */
class Judges implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const { says } = context.switchToHttp().getRequest<{ body: { says: string } }>().body;
    if (says === 'null') throw new TypeError('user is null');
    if (says !== 'right') throw new HttpException('refused', Number(says));
    return true;
  }
}

/** As other packages do: what it puts in the method's place has no name. */
const wrapped: MethodDecorator = (_target, _key, descriptor) => {
  const method = descriptor.value as unknown as (...args: unknown[]) => unknown;
  const [wrapper] = [
    function (this: unknown, ...args: unknown[]): unknown {
      return method.apply(this, args);
    },
  ];
  for (const key of Reflect.getMetadataKeys(method) as string[])
    Reflect.defineMetadata(key, Reflect.getMetadata(key, method), wrapper);
  descriptor.value = wrapper as never;
};

const byLocation = {
  ...FAILURES,
  isFailure: (_error, { location }) => location?.includes('error'),
} satisfies LimitPolicy;

@UseInterceptors(Unwraps)
@Controller()
class Unwrapped {
  @RateLimit('otp')
  @Post('unwrapped')
  unwrapped(): object {
    return { ok: false };
  }
}

@Controller()
class Routes {
  @RateLimit('otp')
  @UseFilters(AnswersRefused)
  @Post('filtered')
  filtered(): void {
    throw new WrongCode();
  }

  @RateLimit({ ...FAILURES, isFailure: (_error, { statusCode }) => statusCode === 422 })
  @UseFilters(AnswersRefused)
  @Post('filtered-false')
  filteredFalse(): void {
    throw new WrongCode();
  }

  @RateLimit(byLocation)
  @UseFilters(LeadsBack)
  @Post('filtered-redirect')
  filteredRedirect(): void {
    throw new WrongCode();
  }

  @RateLimit(byLocation)
  @wrapped
  @Post('wrapped')
  wrappedRoute(@Res() response: Response): void {
    setTimeout(() => redirectTo(response, '/login?error'), 5);
  }

  @RateLimit('otp')
  @Post('otp')
  otp(@Query('code', ParseIntPipe) code: number, @Body() { says }: { says: string }): object {
    const Refusal = REFUSALS[says];
    if (Refusal) throw new Refusal();
    if (/^\d+$/.test(says)) throw new HttpException('refused', Number(says));
    return { code };
  }

  @RateLimit('login')
  @Post('login')
  login(@Query('code', ParseIntPipe) code: number, @Body() { says }: { says: string }): object {
    return this.otp(code, { says });
  }

  @RateLimit('otp')
  @UseGuards(Judges)
  @Post('guarded-otp')
  guardedOtp(): void {}

  @RateLimit('login')
  @UseGuards(Judges)
  @Post('guarded-login')
  guardedLogin(): void {}

  @RateLimit(FAILURES)
  @UseGuards(Judges)
  @Post('no-verdict')
  noVerdict(): void {}

  /** Fastify's reply learns nothing of a response that is written past it. */
  @RateLimit(byLocation)
  @Post('raw')
  raw(@Res() response: RawResponse): void {
    response.hijack?.();
    const raw = response.raw ?? response;
    raw.writeHead(302, { location: '/login?error' });
    raw.end();
  }

  @RateLimit(FAILURES)
  @Post('raw-status')
  rawStatus(@Res() response: RawResponse): void {
    response.hijack?.();
    const raw = response.raw ?? response;
    raw.statusCode = 401;
    raw.end();
  }

  @RateLimit('signup')
  @Redirect('/welcome', 303)
  @Post('signup')
  signup(@Body() { says }: { says: string }): void {
    if (says === 'taken') throw new BadRequestException();
  }

  @RateLimit({
    ...FAILURES,
    isFailure: (error, end) => {
      asked.push([error, end]);
      return end.location?.includes('error');
    },
  })
  @Redirect('/home')
  @Post('redirects')
  redirects(@Body() { says }: { says: string }): object | undefined {
    return says === 'right' ? undefined : { url: '/login?error', statusCode: 303 };
  }

  @RateLimit(byLocation)
  @Post('by-hand')
  byHand(@Res() response: Response): void {
    redirectTo(response, '/login?error');
  }

  @RateLimit({
    ...FAILURES,
    isFailure: () => {
      throw new Error('a mistake');
    },
  })
  @Post('throws')
  throws(): void {}

  @RateLimit({
    ...FAILURES,
    isFailure: (error) => (error instanceof UnauthorizedException ? false : undefined),
  })
  @Post('false')
  never(): void {
    throw new UnauthorizedException();
  }

  @RateLimit({ ...FAILURES, isFailure: (_error, { value }) => (value as { ok: boolean }).ok === false })
  @HttpCode(200)
  @Post('value')
  value(): object {
    return { ok: false };
  }

  @RateLimit({ ...FAILURES, resetOnSuccess: true })
  @Redirect('/home')
  @Post('resets')
  resets(@Body() { says }: { says: string }): void {
    const Refusal = REFUSALS[says];
    if (Refusal) throw new Refusal();
  }

  @RateLimit({ ...TWO, count: 'success' })
  @Get('successes')
  successes(@Query('fails') fails?: string): object {
    if (fails) throw new BadRequestException();
    return {};
  }
}

const CELLS = (['express', 'fastify'] as const).flatMap((adapter) =>
  (['memory', 'redis'] as const).map((backend) => [adapter, backend] as const),
);

describe.each(CELLS)('how a call ended, on %s and %s', (adapter, backend) => {
  let app: INestApplication;
  let url: string;
  let warn: jest.SpyInstance;
  let error: jest.SpyInstance;

  beforeEach(async () => {
    asked = [];
    warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    error = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
    const redis = backend === 'redis' ? { redis: (await freshRedis()).url } : {};
    // What limits say is tested here, not their deadline, which a busy machine may miss.
    const limit = { commandTimeoutMs: 10_000 };
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot({ ...redis, limit })],
      controllers: [Routes as Type, Unwrapped],
    }));
  });
  afterEach(async () => {
    jest.restoreAllMocks();
    await app.close();
  });

  const post = async (path: string, says = ''): Promise<number> => {
    const response = await fetch(url + path, {
      method: 'POST',
      redirect: 'manual',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ says, email: 'ann@example.org' }),
    });
    await response.text();
    return response.status;
  };
  const posts = async (n: number, path: string, says?: string): Promise<number[]> => {
    const all: number[] = [];
    for (let i = 0; i < n; i++) all.push(await post(path, says));
    return all;
  };

  const presets = ['otp', 'login'];
  it.each(presets.flatMap((preset) => ['400', '401', '403', '404', '410', '422'].map((of) => [preset, of])))(
    '`%s` counts a guess that is answered %s',
    async (preset, status) => {
      const wrong = Number(status);
      expect(await posts(6, `/${preset}?code=1`, status)).toEqual([wrong, wrong, wrong, wrong, 429, 429]);
    },
  );

  it.each(presets)(
    '`%s` does not count a form that a pipe refuses, nor a service that is away',
    async (preset) => {
      expect(await posts(8, `/${preset}?code=x`)).toEqual(Array(8).fill(400));
      for (const status of ['502', '503', '504'])
        expect(await posts(6, `/${preset}?code=1`, status)).toEqual(Array(6).fill(Number(status)));
      expect(await post(`/${preset}?code=1`)).toBe(201);
    },
  );

  it.each(presets.flatMap((preset) => ['500', '408'].map((status) => [preset, status])))(
    '`%s` counts a wrong guess that ends as %s',
    async (preset, status) => {
      const answers = await posts(7, `/${preset}?code=1`, status);
      const most = status === '500' ? 5 : 4; // An error of the server fills the window, and is never replaced by a 429.
      expect(answers).toEqual([
        ...Array<number>(most).fill(Number(status)),
        ...Array<number>(7 - most).fill(429),
      ]);
    },
  );

  it.each(presets.flatMap((preset) => ['null', '500', '408'].map((says) => [preset, says])))(
    '`%s` counts a wrong guess in a guard that ends as %s',
    async (preset, says) => {
      const wrong = says === '408' ? 408 : 500;
      expect(await posts(7, `/guarded-${preset}`, says)).toEqual([...Array<number>(5).fill(wrong), 429, 429]);
    },
  );

  it.each(presets)('`%s` does not count what a guard has not judged', async (preset) => {
    for (const says of ['400', '422', '429', '502', '503', '504'])
      expect(await posts(6, `/guarded-${preset}`, says)).toEqual(Array(6).fill(Number(says)));
    expect(await post(`/guarded-${preset}`, 'right')).toBe(201);
  });

  it('a timeout or an error of the server that nobody tells about is warned of, each once a route', async () => {
    for (const says of ['408', '500', 'null', '503'])
      expect(await posts(4, '/no-verdict', says)).toEqual(Array(4).fill(Number(says) || 500));
    const told = warn.mock.calls
      .map(([message]) => String(message))
      .filter((text) => /NO_VERDICT/.test(text));
    expect(told).toEqual([
      expect.stringMatching(/RATE_LIMIT_NO_VERDICT: POST \/no-verdict answered with a timeout/),
      expect.stringMatching(/RATE_LIMIT_NO_VERDICT: POST \/no-verdict answered with an error of the server/),
    ]);
  });

  it('a response that is written past the adapter is judged by what was sent', async () => {
    expect(await posts(5, '/raw-status')).toEqual([401, 401, 401, 429, 429]);
    expect(await posts(5, '/raw')).toEqual([302, 302, 302, 429, 429]);
  });

  it('a sign-up counts once it is made, also one that redirects', async () => {
    expect(await posts(8, '/signup', 'taken')).toEqual(Array(8).fill(400));
    expect(await posts(6, '/signup')).toEqual([303, 303, 303, 303, 303, 429]);
  });

  it('a redirect is told by where it leads, and is asked about once, before it leaves', async () => {
    expect(await post('/redirects', 'right')).toBe(302);
    expect(await posts(4, '/redirects', 'wrong')).toEqual([303, 303, 429, 429]);
    expect(asked.map(([, { statusCode, location }]) => [statusCode, location])).toEqual([
      [302, '/home'],
      ...Array<unknown>(3).fill([303, '/login?error']),
    ]);
    expect(asked[1]).toMatchObject([undefined, { handled: true, value: { url: '/login?error' } }]);
  });

  it('with @Res the next call is denied', async () => {
    expect(await posts(5, '/by-hand')).toEqual([302, 302, 302, 429, 429]);
    expect(await posts(5, '/wrapped')).toEqual([302, 302, 302, 429, 429]);
  });

  it.each(['/filtered', '/unwrapped'])('what leaves is judged, not what came before it: %s', async (path) => {
    expect(await posts(6, path)).toEqual([422, 422, 422, 422, 422, 429]);
  });

  it("so is what a filter makes of an error for an isFailure of one's own", async () => {
    expect(await posts(4, '/filtered-false')).toEqual([422, 422, 422, 429]);
    expect(await posts(4, '/filtered-redirect')).toEqual([302, 302, 302, 429]);
  });

  it('an isFailure that throws counts, and is logged', async () => {
    expect(await posts(4, '/throws')).toEqual([201, 201, 429, 429]);
    expect(error.mock.calls.map(([message]) => String(message))).toContainEqual(
      expect.stringMatching(
        /`isFailure` of the policy POST \/throws failed, so the call counts\. Correct the function\. Error: a mistake/,
      ),
    );
  });

  it('`false` stands against a status, and `true` for an answer of 200', async () => {
    expect(await posts(5, '/false')).toEqual(Array(5).fill(401));
    expect(await posts(4, '/value')).toEqual([200, 200, 429, 429]);
  });

  it('only 2xx forgets; a redirect that nobody tells about is warned of once', async () => {
    expect(await posts(2, '/resets', '401')).toEqual([401, 401]);
    expect(await posts(2, '/resets', 'right')).toEqual([302, 302]);
    expect([await post('/resets', '400'), await post('/resets', '404')]).toEqual([400, 404]);
    expect(await post('/resets', '401')).toBe(429);
    const told = warn.mock.calls
      .map(([message]) => String(message))
      .filter((text) => /NO_VERDICT/.test(text));
    expect(told).toEqual([expect.stringMatching(/RATE_LIMIT_NO_VERDICT: POST \/resets answered/)]);
  });

  it('successes count, failures give their room back', async () => {
    const get = async (query = ''): Promise<number> => (await fetch(`${url}/successes${query}`)).status;
    for (let i = 0; i < 4; i++) expect(await get('?fails=1')).toBe(400);
    expect([await get(), await get(), await get()]).toEqual([200, 200, 429]);
  });
});
