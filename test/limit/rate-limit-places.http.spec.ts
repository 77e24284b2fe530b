import 'reflect-metadata';
import {
  All,
  Controller,
  Get,
  type INestApplication,
  Logger,
  Module,
  Post,
  type Type,
  Version,
  VERSION_NEUTRAL,
  VersioningType,
} from '@nestjs/common';
import { APP_GUARD, RouterModule } from '@nestjs/core';
import { minutes, RateLimit, RateLimitGuard, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { type HttpApp, listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

const TWO = { limit: 2, windowMs: minutes(1) };

describe.each(['express', 'fastify'] as const)('one handler with several paths, on %s', (adapter) => {
  let running: HttpApp | undefined;
  afterEach(async () => {
    await running?.app.close();
    running = undefined;
  });

  const start = async (
    metadata: {
      controllers?: Type[];
      imports?: Parameters<typeof listen>[1]['imports'];
      providers?: object[];
    },
    prepare: (app: INestApplication) => void = () => {},
    options: SyncGuardOptions = {},
  ): Promise<void> => {
    const { imports = [], controllers = [], providers = [] } = metadata;
    const module = SyncGuardModule.forRoot({ ...options, limit: { headers: 'draft-10' } });
    running = await listen(
      adapter,
      { imports: [module, ...imports], controllers, providers: providers as [] },
      undefined,
      prepare,
    );
  };

  /** The statuses of one call a path, and the names of the limits that the answers have. */
  const call = async (...paths: string[]): Promise<{ statuses: number[]; names: string[] }> => {
    const statuses: number[] = [];
    const names = new Set<string>();
    for (const each of paths) {
      const [path = '', method = 'GET', version] = each.split(' ');
      const headers: Record<string, string> = version ? { 'x-version': version } : {};
      const response = await fetch(`${running?.url}${path}`, { method, headers });
      statuses.push(response.status);
      const policy = response.headers.get('ratelimit-policy');
      if (policy) names.add(policy.replace(/;q=2;w=60/g, ''));
    }
    return { statuses, names: [...names] };
  };
  const once = (name: string) => ({ statuses: [200, 200, 429, 429], names: [`"${name}"`] });

  it('has one limit, named by its first path', async () => {
    @Controller(['a', '/b/'])
    class Several {
      @RateLimit(TWO)
      @Get(['x', '/y'])
      several(): void {}

      @RateLimit(TWO)
      @Get()
      root(): void {}
    }
    await start({ controllers: [Several] });
    expect(await call('/a/x', '/b/y', '/a/y', '/b/x')).toEqual(once('GET /a/x'));
    expect(await call('/b', '/a', '/a?q=1', '/b')).toEqual(once('GET /a'));
  });

  it('has one limit for HEAD and GET, and for all methods of @All', async () => {
    @Controller()
    class Methods {
      @RateLimit(TWO)
      @Get(['x', 'y'])
      several(): void {}

      @RateLimit(TWO)
      @All(['m', 'n'])
      all(): string {
        return '';
      }
    }
    await start({ controllers: [Methods] });
    expect(await call('/x HEAD', '/y', '/x', '/y HEAD')).toEqual(once('GET /x'));
    const { names, statuses } = await call('/m PUT', '/n DELETE', '/m', '/n POST');
    expect(names).toEqual(['"* /m"']);
    expect(statuses).toEqual([200, 200, 429, 429]);
  });

  it('has one limit for paths with parameters and wildcards', async () => {
    @Controller('files')
    class Files {
      @RateLimit(TWO)
      @Get(['of/:user', adapter === 'express' ? 'below/*path' : 'below/*', 'all'])
      files(): void {}
    }
    await start({ controllers: [Files] });
    expect(await call('/files/below/a/b', '/files/of/ann', '/files/all', '/files/of/bob')).toEqual(
      once('GET /files/of/:user'),
    );
  });

  it('has one limit for the versions in its paths', async () => {
    @Controller({ path: 'of-class', version: ['1', '2'] })
    class OfClass {
      @RateLimit(TWO)
      @Get()
      get(): void {}

      @RateLimit(TWO)
      @Version('3')
      @Get('third')
      third(): void {}
    }
    @Controller()
    class OfMethod {
      @RateLimit(TWO)
      @Version([VERSION_NEUTRAL, '1'])
      @Get('neutral')
      neutral(): void {}

      @RateLimit(TWO)
      @Get('by-default')
      byDefault(): void {}
    }
    await start({ controllers: [OfClass, OfMethod] }, (app) =>
      app.enableVersioning({ type: VersioningType.URI, prefix: 'version-', defaultVersion: ['7', '8'] }),
    );
    const paths = [
      '/version-2/of-class',
      '/version-1/of-class',
      '/version-2/of-class',
      '/version-1/of-class',
    ];
    expect(await call(...paths)).toEqual(once('GET /version-1/of-class@1,2'));
    expect((await call('/version-3/of-class/third')).names).toEqual(['"GET /version-3/of-class/third@3"']);
    expect((await call('/neutral', '/version-1/neutral', '/neutral')).statuses).toEqual([200, 200, 429]);
    const { statuses, names } = await call(
      '/version-7/by-default',
      '/version-8/by-default',
      '/version-8/by-default',
    );
    expect([statuses, names]).toEqual([[200, 200, 429], ['"GET /version-7/by-default"']]);
  });

  it('has one limit for the versions in a header, a neutral one among them', async () => {
    @Controller()
    class Routes {
      @RateLimit(TWO)
      @Version([VERSION_NEUTRAL, '1', '2'])
      @Get('x')
      get(): void {}
    }
    await start({ controllers: [Routes] }, (app) =>
      app.enableVersioning({ type: VersioningType.HEADER, header: 'x-version' }),
    );
    expect((await call('/x GET 1', '/x GET 2', '/x GET 1', '/x')).statuses).toEqual([200, 200, 429, 429]);
  });

  it('has one limit under a prefix that leaves out one of its paths', async () => {
    @Controller()
    class Routes {
      @RateLimit(TWO)
      @Get(['in', 'out'])
      get(): void {}

      @RateLimit(TWO)
      @Get(['free', 'bound'])
      free(): void {}
    }
    await start({ controllers: [Routes] }, (app) =>
      app.setGlobalPrefix('/api', { exclude: ['out', 'free'] }),
    );
    expect(await call('/out', '/api/in', '/out', '/api/in')).toEqual(once('GET /api/in'));
    expect(await call('/api/bound', '/free', '/free', '/api/bound')).toEqual(once('GET /free'));
  });

  it('has one limit in the modules that RouterModule gives paths to', async () => {
    @Controller('cats')
    class Cats {
      @RateLimit(TWO)
      @Get()
      list(): void {}
    }
    @Module({ controllers: [Cats] })
    class First {}
    @Module({ controllers: [Cats] })
    class Second {}
    const routes = [
      { path: 'first', module: First },
      { path: '/second', module: Second },
    ];
    await start({ imports: [First, Second, RouterModule.register(routes)] });
    expect(await call('/second/cats', '/first/cats', '/first/cats', '/second/cats')).toEqual(
      once('GET /first/cats'),
    );
  });

  it('has one limit where the policy counts each route apart', async () => {
    @Controller(['a', 'b'])
    class Routes {
      @Get(['x', 'y'])
      get(): void {}

      @Get('z')
      other(): void {}
    }
    const limits = { default: { ...TWO, keyBy: ['ip', 'route'] } };
    await start(
      { controllers: [Routes], providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }] },
      undefined,
      { limits },
    );
    expect((await call('/a/x', '/b/y', '/a/y', '/b/x')).statuses).toEqual([200, 200, 429, 429]);
    expect((await call('/b/z', '/a/z', '/b/z')).statuses).toEqual([200, 200, 429]);
  });

  it('does not share it with other handlers, or with a subclass', async () => {
    class Base {
      @RateLimit(TWO)
      @Get(['x', 'y'])
      get(): void {}

      @RateLimit(TWO)
      @Post(['x', 'y'])
      post(): void {}
    }
    @Controller(['one', 'uno'])
    class One extends Base {}
    @Controller(['two', 'due'])
    class Two extends Base {}
    await start({ controllers: [One, Two] });
    expect(await call('/one/x', '/uno/y', '/one/y', '/uno/x')).toEqual(once('GET /one/x'));
    expect(await call('/due/x', '/two/y', '/two/x', '/due/y')).toEqual(once('GET /two/x'));
    expect((await call('/one/x POST', '/uno/y POST', '/uno/x POST')).statuses).toEqual([201, 201, 429]);
  });

  it('has one limit whatever host of its template is asked', async () => {
    @Controller({ host: ['localhost', ':part.0.0.1'], path: ['a', 'b'] })
    class Routes {
      @RateLimit(TWO)
      @Get()
      get(): void {}
    }
    await start({ controllers: [Routes] });
    const port = new URL(running?.url ?? '').port;
    const get = async (url: string): Promise<number> => (await fetch(url)).status;
    const statuses = [
      await get(`http://127.0.0.1:${port}/a`),
      await get(`http://127.0.0.1:${port}/b`),
      await get(`http://127.0.0.1:${port}/a`),
    ];
    expect(statuses).toEqual([200, 200, 429]);
  });
});
