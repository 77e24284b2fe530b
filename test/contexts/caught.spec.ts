import 'reflect-metadata';
import {
  type ArgumentsHost,
  Catch,
  Controller,
  type ExceptionFilter,
  Get,
  HttpException,
  type INestApplication,
  Logger,
  type Type,
  UnauthorizedException,
  UseFilters,
} from '@nestjs/common';
import { APP_FILTER, APP_GUARD, HttpAdapterHost } from '@nestjs/core';
import { Query, Resolver } from '@nestjs/graphql';
import { SubscribeMessage, WebSocketGateway, WsException } from '@nestjs/websockets';
import {
  minutes,
  RateLimit,
  RateLimitGuard,
  SyncGuardError,
  SyncGuardModule,
  toHttpException,
  TooManyAttemptsError,
} from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { graphqlApp } from './apps/graphql-app.js';
import { socketApp } from './apps/socket-app.js';

Logger.overrideLogger(['error', 'warn']);

const ONE = { limit: 1, windowMs: minutes(1) };
const FAILURES = {
  count: 'failure' as const,
  temp: { windowMs: minutes(1), threshold: 1, blockMs: minutes(1) },
};

/** What filters of the app have caught. */
const caught: unknown[] = [];
beforeEach(() => void caught.splice(0));

/** The filter that docs/errors.md has. */
@Catch(TooManyAttemptsError)
class SlowDown implements ExceptionFilter<TooManyAttemptsError> {
  catch(error: TooManyAttemptsError, host: ArgumentsHost): void {
    caught.push(error);
    const response = host
      .switchToHttp()
      .getResponse<{ status(code: number): { send(body: object): void } }>();
    response.status(429).send({ slowDown: error.retryAfterSecs, code: error.code, ms: error.retryAfterMs });
  }
}

const byFilter = { slowDown: 60, code: 'RateLimited', ms: 60_000 };

function routes(
  limited: boolean,
  onClass: readonly ClassDecorator[],
  onMethod: readonly MethodDecorator[],
): Type {
  @Controller()
  class Routes {
    @Get('limited')
    limited(): string {
      return 'ok';
    }

    @Get('failing')
    failing(): never {
      throw new UnauthorizedException();
    }
  }
  const decorate = (key: 'limited' | 'failing', decorators: readonly MethodDecorator[]): void => {
    const descriptor = Object.getOwnPropertyDescriptor(Routes.prototype, key) as PropertyDescriptor;
    for (const decorator of decorators) decorator(Routes.prototype, key, descriptor);
  };
  decorate('limited', limited ? [RateLimit(ONE), ...onMethod] : onMethod);
  decorate('failing', [RateLimit({ ...FAILURES, code: 'RateLimited' }), ...onMethod]);
  for (const decorator of onClass) decorator(Routes);
  return Routes;
}

const PLACES = {
  'on the method': { onMethod: [UseFilters(SlowDown)] },
  'on the class': { onClass: [UseFilters(SlowDown)] },
  'by useGlobalFilters': { prepare: (app: INestApplication) => app.useGlobalFilters(new SlowDown()) },
  'as APP_FILTER': { providers: [{ provide: APP_FILTER, useClass: SlowDown }] },
} as const;

interface Place {
  readonly onMethod?: readonly MethodDecorator[];
  readonly onClass?: readonly ClassDecorator[];
  readonly providers?: readonly object[];
  readonly prepare?: (app: INestApplication) => unknown;
}

describe.each(['express', 'fastify'] as const)('what the guard throws, on %s', (adapter) => {
  describe.each([true, false])('with http: %s', (http) => {
    it.each(Object.entries<Place>(PLACES))(
      'is caught by @Catch(TooManyAttemptsError) %s, thrown by the guard of @RateLimit, as APP_GUARD, or after a failure',
      async (_, { onMethod = [], onClass = [], providers = [], prepare = () => {} }) => {
        for (const brings of [true, false]) {
          const global = brings ? [] : [{ provide: APP_GUARD, useClass: RateLimitGuard }];
          const options = brings ? {} : { limits: { default: ONE } };
          const { app, url } = await listen(
            adapter,
            {
              imports: [SyncGuardModule.forRoot({ http, ...options })],
              controllers: [routes(brings, onClass, onMethod)],
              providers: [...providers, ...global] as [],
            },
            undefined,
            prepare,
          );
          const answer = async (path: string): Promise<[number, unknown]> => {
            const response = await fetch(`${url}/${path}`);
            return [response.status, await response.json().catch(() => undefined)];
          };
          try {
            if (brings) expect(await answer('failing')).toEqual([429, byFilter]);
            await answer('limited');
            expect(await answer('limited')).toEqual([
              429,
              { ...byFilter, ms: expect.any(Number) as unknown },
            ]);
          } finally {
            await app.close();
          }
        }
        expect(caught).toHaveLength(3);
        for (const error of caught as TooManyAttemptsError[]) {
          expect(error).toBeInstanceOf(HttpException);
          expect(error).toBeInstanceOf(SyncGuardError);
          expect(error).toMatchObject({ code: 'RateLimited', decision: { allowed: false, scope: 'temp' } });
          expect(toHttpException(error)).toBe(error);
        }
      },
    );
  });

  it.each([true, false])('stays an HttpException for filters of the app, with http: %s', async (http) => {
    @Catch(HttpException)
    class Own implements ExceptionFilter<HttpException> {
      constructor(private readonly host: HttpAdapterHost) {}
      catch(error: HttpException, host: ArgumentsHost): void {
        const body = { own: error.getResponse() };
        this.host.httpAdapter.reply(host.switchToHttp().getResponse(), body, error.getStatus());
      }
    }
    const { app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot({ http })],
      controllers: [routes(true, [], [])],
      providers: [
        {
          provide: APP_FILTER,
          inject: [HttpAdapterHost],
          useFactory: (host: HttpAdapterHost) => new Own(host),
        },
      ],
    });
    await fetch(`${url}/limited`);
    const response = await fetch(`${url}/limited`);
    expect([response.status, response.headers.get('retry-after')]).toEqual([429, '60']);
    expect(await response.json()).toMatchObject({ own: { statusCode: 429, context: { retryAfter: 60 } } });
    await app.close();
  });
});

describe('what the guard throws outside of HTTP', () => {
  it('is an error of ours for filters of a resolver', async () => {
    @Catch(TooManyAttemptsError)
    class Rethrowing implements ExceptionFilter<TooManyAttemptsError> {
      catch(error: TooManyAttemptsError): TooManyAttemptsError {
        caught.push(error);
        return error;
      }
    }
    @Resolver()
    class Searches {
      @Query(() => String)
      @UseFilters(Rethrowing)
      @RateLimit(ONE)
      search(): string {
        return 'found';
      }
    }
    const { query, close } = await graphqlApp('express', {
      imports: [SyncGuardModule.forRoot()],
      providers: [Searches],
    });
    await query('{ search }');
    const { errors } = await query('{ search }');
    expect(errors?.[0]?.extensions).toMatchObject({ statusCode: 429, code: 'RateLimited' });
    expect(caught).toMatchObject([{ code: 'RateLimited', decision: { scope: 'temp' } }]);
    await close();
  });

  it.each(['socket.io', 'ws'] as const)(
    'is an error of ours for filters of a gateway on %s',
    async (kind) => {
      @Catch(TooManyAttemptsError)
      class Telling implements ExceptionFilter<TooManyAttemptsError> {
        catch(error: TooManyAttemptsError, host: ArgumentsHost): void {
          caught.push(error);
          const text = JSON.stringify({ event: 'exception', data: { slowDown: true } });
          const client = host
            .switchToWs()
            .getClient<{ emit(event: string, data: object): void; send(text: string): void }>();
          if (kind === 'ws') client.send(text);
          else client.emit('exception', { slowDown: true });
        }
      }
      @WebSocketGateway()
      class Gateway {
        @SubscribeMessage('run')
        @UseFilters(Telling)
        @RateLimit(ONE)
        run(): { event: string; data: string } {
          return { event: 'run', data: 'ok' };
        }
      }
      const { send, close } = await socketApp(kind, {
        imports: [SyncGuardModule.forRoot()],
        providers: [Gateway],
      });
      await send('run');
      expect(await send('run')).toEqual({ exception: { slowDown: true } });
      expect(caught[0]).toBeInstanceOf(WsException);
      expect(caught).toMatchObject([{ code: 'RateLimited', retryAfterSecs: 60 }]);
      await close();
    },
  );
});
