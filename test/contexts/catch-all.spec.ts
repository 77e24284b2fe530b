import 'reflect-metadata';
import {
  type ArgumentsHost,
  BadRequestException,
  Catch,
  Controller,
  type ExceptionFilter,
  Get,
  HttpException,
  Module,
  NotFoundException,
  Scope,
  type Type,
} from '@nestjs/common';
import { APP_FILTER, BaseExceptionFilter, HttpAdapterHost, ModuleRef } from '@nestjs/core';
import {
  LockError,
  SyncGuardError,
  SyncGuardExceptionFilter,
  SyncGuardModule,
  type SyncGuardOptions,
  toHttpException,
} from 'nestjs-syncguard';
import { globalEnhancers } from '../../lib/transport/global-settings.js';
import { type HttpApp, listen } from '../support/adapters.js';

const locked = (): LockError => new LockError({ code: 'AcquisitionTimeout', message: 'Somebody holds it.' });

@Controller()
class Routes {
  @Get('locked')
  locked(): never {
    throw locked();
  }
  @Get('missing')
  missing(): never {
    throw new NotFoundException();
  }
}

@Catch()
class EveryError extends BaseExceptionFilter {}

@Catch(Error)
class AnyError extends BaseExceptionFilter {}

/** The recipe of docs/contexts.md. */
@Catch()
class Knowing extends BaseExceptionFilter {
  override catch(error: unknown, host: ArgumentsHost): void {
    super.catch(toHttpException(error), host);
  }
}

@Catch(HttpException)
class OfNest implements ExceptionFilter {
  catch(): void {}
}
/** Knows what it catches, and is nothing to be warned of. */
@Catch(SyncGuardError)
class OfOurs extends Knowing {}

describe.each(['express', 'fastify'] as const)('a filter that catches everything, on %s', (adapter) => {
  const log = { log: jest.fn(), error: jest.fn(), warn: jest.fn() };
  let running: HttpApp | undefined;
  beforeEach(() => jest.clearAllMocks());
  afterEach(async () => {
    await running?.app.close();
    running = undefined;
  });

  /** What was warned of, and how a lock that is held is answered. */
  const start = async (
    bind: (app: HttpApp['app'], host: HttpAdapterHost) => void,
    options: SyncGuardOptions = {},
    more: { imports?: Type[]; providers?: object[] } = {},
  ): Promise<[unknown[], number]> => {
    running = await listen(
      adapter,
      {
        imports: [SyncGuardModule.forRoot(options), ...(more.imports ?? [])],
        controllers: [Routes],
        providers: (more.providers ?? []) as never[],
      },
      (builder) => builder.setLogger(log),
      (app) => bind(app, app.get(HttpAdapterHost)),
    );
    const warnings = log.warn.mock.calls.map(([message]) => String(message));
    return [warnings.filter((text) => /^[A-Z_]+:/.test(text)), (await fetch(`${running.url}/locked`)).status];
  };
  const WARNED = [expect.stringMatching(/^FILTER_CATCHES_ALL/)];

  it('and is bound after ours is warned of at boot', async () => {
    for (const Filter of [EveryError, AnyError]) {
      expect(await start((app, { httpAdapter }) => app.useGlobalFilters(new Filter(httpAdapter)))).toEqual([
        WARNED,
        500,
      ]);
      expect(log.warn.mock.calls.flat().join()).toContain(`FILTER_CATCHES_ALL: ${Filter.name} catches every`);
      await running?.app.close();
      jest.clearAllMocks();
    }
    @Module({ providers: [{ provide: APP_FILTER, useClass: EveryError }] })
    class Later {}
    expect(await start(() => {}, {}, { imports: [Later] })).toEqual([WARNED, 500]);
  });

  it('and is made for each request is warned of as well', async () => {
    @Catch()
    class PerRequest extends BaseExceptionFilter {}
    const provider = { provide: APP_FILTER, useClass: PerRequest, scope: Scope.REQUEST };
    expect((await start(() => {}, {}, { providers: [provider] }))[0]).toEqual(WARNED);
  });

  it('and stands before ours, or beside filters of some errors, is not', async () => {
    const root = { providers: [{ provide: APP_FILTER, useClass: EveryError }] };
    expect(await start((app) => app.useGlobalFilters(new OfNest()), {}, root)).toEqual([[], 423]);
    await running?.app.close();
    expect(
      await start((app, host) =>
        app.useGlobalFilters(new EveryError(host.httpAdapter), new SyncGuardExceptionFilter(host)),
      ),
    ).toEqual([[], 423]);
  });

  it('and answers toHttpException(error), with `http: false`, is not, and answers as ours', async () => {
    const bind: Parameters<typeof start>[0] = (app, { httpAdapter }) =>
      app.useGlobalFilters(new Knowing(httpAdapter));
    expect(await start(bind, { http: false })).toEqual([[], 423]);
    const answer = await fetch(`${running?.url}/locked`);
    expect(await answer.json()).toEqual({
      statusCode: 423,
      code: 'AcquisitionTimeout',
      message: 'Somebody holds it.',
      context: {},
    });
    expect((await fetch(`${running?.url}/missing`)).status).toBe(404);
  });

  it('sees through one access what is bound globally; elsewhere nothing is said to be known', async () => {
    const bound = await start((app, host) => app.useGlobalFilters(new OfOurs(host.httpAdapter)));
    expect(bound).toEqual([[], 423]);
    const seen = globalEnhancers(running?.app.get(ModuleRef) as ModuleRef);
    expect(globalNames(seen?.filters ?? [])).toEqual(['SyncGuardExceptionFilter', 'OfOurs']);
    expect(globalEnhancers({} as ModuleRef)).toBeUndefined();
    expect(globalEnhancers({ container: { applicationConfig: {} } } as never)).toBeUndefined();
    expect(globalEnhancers({ container: { applicationConfig: undefined } } as never)).toEqual({
      guards: [],
      filters: [],
    });
  });
});

const globalNames = (filters: readonly unknown[]): string[] =>
  filters.map((filter) => (filter as object).constructor.name);

describe('toHttpException', () => {
  it('gives ours status and body, and leaves others as they are', () => {
    const exception = toHttpException<unknown>(locked()) as HttpException;
    expect([exception.getStatus(), exception.cause]).toEqual([423, expect.any(LockError)]);
    expect(exception.getResponse()).toMatchObject({ statusCode: 423, code: 'AcquisitionTimeout' });
    for (const other of [new BadRequestException(), new Error('x'), 'text', undefined])
      expect(toHttpException(other)).toBe(other);
  });
});
