import 'reflect-metadata';
import {
  All,
  BadRequestException,
  Body,
  Controller,
  type CallHandler,
  type ExecutionContext,
  Get,
  HttpCode,
  type INestApplication,
  Injectable,
  Logger,
  type NestInterceptor,
  Post,
  Res,
  UnauthorizedException,
  UseInterceptors,
} from '@nestjs/common';
import { map, type Observable } from 'rxjs';
import { connect } from 'node:net';
import { minutes, RateLimit, seconds, SkipRateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

const FAILURES = {
  name: 'failures',
  keyBy: ['ip', 'body.email'],
  count: 'failure',
  resetOnSuccess: true,
  temp: { windowMs: minutes(1), threshold: 3, blockMs: minutes(1) },
} as const;

@Injectable()
class NotOkIsUnauthorized implements NestInterceptor {
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return next.handle().pipe(
      map((value: unknown) => {
        if (!(value as { ok: boolean }).ok) throw new UnauthorizedException();
        return value;
      }),
    );
  }
}

interface Attempt {
  email: unknown;
  code?: string;
}

@Controller()
class Attempts {
  @Post('typed')
  @HttpCode(200)
  @RateLimit(FAILURES)
  typed(@Body() { code }: Attempt): object {
    if (code === undefined) throw new BadRequestException();
    if (code === 'missing') throw new Error('no such user');
    if (code !== 'right') throw new UnauthorizedException();
    return {};
  }

  @Post('callback')
  @RateLimit({ ...FAILURES, name: 'callback' })
  callback(@Res() response: { status?(code: number): { send(body: unknown): void } }): void {
    setTimeout(() => response.status?.(401).send({}), 5);
  }

  @Post('interceptor')
  @UseInterceptors(NotOkIsUnauthorized)
  @RateLimit({ ...FAILURES, name: 'interceptor' })
  interceptor(): object {
    return { ok: false };
  }

  @Post('slow')
  @RateLimit({ ...FAILURES, name: 'slow' })
  async slow(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, 100));
    throw new UnauthorizedException();
  }

  @All('all')
  @RateLimit({ limit: 2, windowMs: seconds(10) })
  all(): object {
    return {};
  }
}

@UseInterceptors(NotOkIsUnauthorized)
@Controller('outer')
class Outer {
  @Post()
  @RateLimit({ ...FAILURES, name: 'outer' })
  post(): object {
    return { ok: false };
  }
}

@SkipRateLimit()
@Controller('skipped')
class Skipped {
  @Get('not-this')
  @RateLimit({ limit: 1, windowMs: seconds(10) })
  notThis(): object {
    return {};
  }
}

describe.each(['express', 'fastify'] as const)('limits that count failures, on %s', (adapter) => {
  let app: INestApplication;
  let url: string;
  beforeEach(async () => {
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot()],
      controllers: [Attempts, Outer, Skipped],
    }));
    app.useLogger(false);
  });
  afterEach(() => app.close());

  const post = async (path: string, body: unknown = {}): Promise<number> =>
    (
      await fetch(url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
    ).status;
  const statuses = async (path: string, bodies: unknown[]): Promise<number[]> => {
    const all: number[] = [];
    for (const body of bodies) all.push(await post(path, body));
    return all;
  };
  const ann = (code?: string, email: unknown = 'ann@example.org'): Attempt => ({ email, code });

  it('only a success forgets: an answer of 400 or 500 does not', async () => {
    const tries = [ann('no'), ann('no'), ann(), ann('missing'), ann('no'), ann('right')];
    expect(await statuses('/typed', tries)).toStrictEqual([401, 401, 400, 500, 429, 429]);
  });

  it('a success forgets the failures before it', async () => {
    const tries = [ann('no'), ann('no'), ann('right'), ann('no'), ann('no'), ann('no')];
    expect(await statuses('/typed', tries)).toStrictEqual([401, 401, 200, 401, 401, 429]);
  });

  it('a 401 that an interceptor makes of the answer counts', async () => {
    expect(await statuses('/interceptor', Array(4).fill(ann()))).toStrictEqual([401, 401, 429, 429]);
    expect(await statuses('/outer', Array(4).fill(ann()))).toStrictEqual([401, 401, 401, 429]);
  });

  if (adapter === 'express')
    it('a 401 that a callback sets later counts', async () => {
      expect(await statuses('/callback', Array(4).fill(ann()))).toStrictEqual([401, 401, 401, 429]);
    });

  it('a client that leaves before the answer is counted', async () => {
    const { port } = new URL(url);
    const body = JSON.stringify(ann());
    for (let i = 0; i < 3; i++) {
      const socket = connect(Number(port), '127.0.0.1');
      socket.end(
        `POST /slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`,
      );
      setTimeout(() => socket.destroy(), 30);
      await new Promise((resolve) => socket.once('close', resolve));
    }
    await eventually(async () => expect(await post('/slow', ann())).toBe(429));
  });

  it('one account in other clothes is the same account', async () => {
    const clothes = [
      'ann@example.org',
      ' ANN@example.org ',
      ['ann@example.org'],
      `${' '.repeat(1_020)}ann@example.org`,
    ];
    expect(
      await statuses(
        '/typed',
        clothes.map((email) => ann('no', email)),
      ),
    ).toStrictEqual([401, 401, 429, 429]);
  });

  it('a route that takes all methods counts them together', async () => {
    const answers: number[] = [];
    for (const method of ['GET', 'POST', 'PUT']) answers.push((await fetch(`${url}/all`, { method })).status);
    expect(answers).toStrictEqual([200, 200, 429]);
  });

  it('a bare skip on the class leaves what stands on the method', async () => {
    const get = async (): Promise<number> => (await fetch(`${url}/skipped/not-this`)).status;
    expect([await get(), await get()]).toStrictEqual([200, 429]);
  });
});
