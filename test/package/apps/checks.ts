// A program that uses every feature as an app does, and says of each check whether it holds: see ../runs.suite.ts. It runs
// on memory or on REDIS_URL, as it is or out of a bundle, on Node, Bun and Deno. It ends by itself.
import 'reflect-metadata';
import {
  Controller,
  type DynamicModule,
  Get,
  GoneException,
  Module,
  Param,
  Post,
  Query,
} from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { randomUUID } from 'node:crypto';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import {
  AbuseLimiterService,
  BudgetConflictError,
  BudgetExceededError,
  BudgetInputError,
  BudgetService,
  BudgetUnavailableError,
  CounterError,
  CounterService,
  currentHold,
  currentLock,
  FenceGuard,
  LimitError,
  Lock,
  type LockContext,
  LockError,
  LockService,
  minutes,
  RateLimit,
  SecretError,
  SecretService,
  SyncGuardConfigError,
  SyncGuardError,
  SyncGuardHealthIndicator,
  SyncGuardModule,
  type SyncGuardModuleOptions,
  toHttpException,
  TooManyAttemptsError,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import * as compat from 'nestjs-syncguard/compat';
import * as core from 'nestjs-syncguard/core';
import { FakeClock, SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

const REDIS_URL = process.env.REDIS_URL || undefined;
const WINDOW_MS = 60_000;
const BUDGET = {
  limits: [
    { scope: 'month', period: { every: 'month' as const }, limit: 100 },
    { scope: 'life', period: 'lifetime' as const, limit: 100 },
  ],
};

@Controller()
class Routes {
  constructor(
    private readonly locks: LockService,
    private readonly secrets: SecretService,
    private readonly health: SyncGuardHealthIndicator,
  ) {}

  @Post('pay/:id')
  @WithLock('checks:order:{0}', { timeoutMs: 0 })
  pay(@Param('id') id: string, @Lock() lock?: LockContext): Promise<object> {
    return Promise.resolve({ id, fence: lock?.fence, isCurrent: currentLock()?.fence === lock?.fence });
  }

  @Post('pay-while-held')
  async payWhileHeld(): Promise<number> {
    const held = await this.locks.acquire({ key: 'checks:order:held', ttlMs: WINDOW_MS });
    try {
      return (await post('pay/held', this.port)).status;
    } finally {
      if (held.ok) await held.release();
    }
  }

  port = 0;

  @Post('blocking')
  @RateLimit({
    name: 'checks-blocking',
    limit: 2,
    windowMs: WINDOW_MS,
    blockMs: WINDOW_MS,
    keyBy: () => 'one',
  })
  blocking(): string {
    return 'ok';
  }

  @Post('limited')
  @RateLimit({ limit: 1, windowMs: WINDOW_MS, keyBy: 'ip' })
  limited(): string {
    return 'ok';
  }

  @Post('open')
  @RateLimit({ name: 'checks-open', limit: 1, windowMs: WINDOW_MS, keyBy: 'ip', onError: 'open' })
  open(): string {
    return 'ok';
  }

  @Post('memory')
  @RateLimit({ name: 'checks-memory', limit: 1, windowMs: WINDOW_MS, keyBy: 'ip', onError: 'memory' })
  memory(): string {
    return 'ok';
  }

  @Post('closed')
  @RateLimit({ name: 'checks-closed', limit: 1, windowMs: WINDOW_MS, keyBy: 'ip', onError: 'closed' })
  closed(): string {
    return 'ok';
  }

  @Post('spend/:scope')
  @WithBudget({ scopes: (scope: string) => [`${scope}:checks`], estimate: () => 60 })
  async spend(@Param('scope') scope: string): Promise<object> {
    return { scope, hasHold: currentHold() !== undefined };
  }

  @Post('secrets')
  create(): Promise<{ id: string }> {
    return this.secrets.create({ payload: 'The door code is 4711', views: 1, ttlMs: minutes(1) });
  }

  @Post('secrets/:id')
  async reveal(@Param('id') id: string): Promise<object> {
    const secret = await this.secrets.view(id);
    if (!secret.ok) throw new GoneException(secret.reason);
    return { payload: secret.payload };
  }

  @Get('lock-named')
  async named(@Query('key') key: string): Promise<boolean> {
    return this.locks.isLocked({ key });
  }

  @Get('health')
  healthy(): Promise<object> {
    return this.health.isHealthy();
  }
}

function moduleOf(options: SyncGuardModuleOptions): DynamicModule {
  @Module({ imports: [SyncGuardModule.forRoot(options)], controllers: [Routes] })
  class App {}
  return { module: App };
}

interface Answer {
  readonly status: number;
  readonly code?: unknown;
  readonly retries: boolean;
  readonly body: Record<string, unknown>;
}

async function ask(method: 'GET' | 'POST', path: string, port: number): Promise<Answer> {
  const response = await fetch(`http://127.0.0.1:${port}/${path}`, { method });
  const text = await response.text();
  const body = (text.startsWith('{') ? JSON.parse(text) : { text }) as Record<string, unknown>;
  return { status: response.status, code: body.code, retries: response.headers.has('retry-after'), body };
}
const post = (path: string, port: number): Promise<Answer> => ask('POST', path, port);

async function listening(options: SyncGuardModuleOptions) {
  const app = await NestFactory.create(moduleOf(options), { logger: false });
  await app.listen(0, '127.0.0.1');
  const { port } = (app.getHttpServer() as Server).address() as AddressInfo;
  app.get(Routes).port = port;
  return { app, port };
}
type App = Awaited<ReturnType<typeof listening>>;

let failed = 0;
async function check(name: string, expected: unknown, actual: () => unknown): Promise<void> {
  let got: unknown;
  try {
    got = await actual();
  } catch (error) {
    got = error instanceof Error ? `${error.name}: ${error.message}` : error;
  }
  const holds = isDeepStrictEqual(got, expected);
  if (!holds) failed++;
  console.log(JSON.stringify({ name, holds, ...(!holds && { got, expected }) }));
}

const outcome = ({ status, code, retries }: Answer): unknown[] => [status, code, retries];
const thrownBy = (call: () => unknown): Promise<unknown> =>
  Promise.resolve()
    .then(call)
    .then(
      () => 'nothing was thrown',
      (error: unknown) => error,
    );

const CLASSES = {
  BudgetConflictError,
  BudgetExceededError,
  BudgetInputError,
  BudgetUnavailableError,
  CounterError,
  InvalidResultError: compat.InvalidResultError,
  LimitError,
  LockError,
  SecretError,
  SyncGuardConfigError,
  TooManyAttemptsError,
} as const;

/** An error is of its own class and of no other, is called by its name, and answers a status over HTTP. */
async function checkErrors(name: keyof typeof CLASSES, code: string, status: number, call: () => unknown) {
  const expected = { classes: [name], isOurs: true, isError: true, name, code, status };
  await check(`errors: ${name} ${code}`, expected, async () => {
    const error = (await thrownBy(call)) as SyncGuardError;
    const http = toHttpException(error) as unknown as { getStatus?(): number };
    return {
      classes: Object.entries(CLASSES).flatMap(([each, type]) => (error instanceof type ? [each] : [])),
      isOurs: error instanceof SyncGuardError,
      isError: error instanceof Error,
      name: error.name,
      code: error.code,
      status: http.getStatus?.(),
    };
  });
}

async function checkHttp({ port }: App): Promise<void> {
  await check('lock: a free one', [201, true, true], async () => {
    const { status, body } = await post('pay/7', port);
    return [status, /^\d{15}$/.test(String(body.fence)), body.isCurrent];
  });
  await check(
    'lock: one that is held is 423',
    '423',
    async () => (await post('pay-while-held', port)).body.text,
  );
  await check('lock: a wrong key is 400', [400, 'InvalidArgument', false], async () =>
    outcome(await ask('GET', 'lock-named', port)),
  );
  await check('limit: a policy that blocks is 429', [429, 'TooManyAttempts', true], async () => {
    for (let i = 0; i < 2; i++) await post('blocking', port);
    return outcome(await post('blocking', port));
  });
  await check('limit: a policy that is named by its route is 429', [429, 'RateLimited', true], async () => {
    await post('limited', port);
    return outcome(await post('limited', port));
  });
  await check('budget: within its limit', { status: 201, hasHold: true }, async () => {
    const { status, body } = await post('spend/month', port);
    return { status, hasHold: body.hasHold };
  });
  await check('budget: past a month is 429', [429, 'BudgetExceeded', true], async () =>
    outcome(await post('spend/month', port)),
  );
  await check('budget: past a lifetime is 402', [402, 'BudgetExceeded', false], async () => {
    await post('spend/life', port);
    return outcome(await post('spend/life', port));
  });
  await check('secret: shown once, then 410', [201, 'The door code is 4711', 410, 'burned'], async () => {
    const { body } = await post('secrets', port);
    const [first, second] = [await post(`secrets/${body.id}`, port), await post(`secrets/${body.id}`, port)];
    return [first.status, first.body.payload, second.status, second.body.message];
  });
  await check('health: up', { status: 'up', backend: REDIS_URL ? 'redis' : 'memory' }, async () => {
    const { syncguard } = (await ask('GET', 'health', port)).body as { syncguard: Record<string, unknown> };
    return { status: syncguard.status, backend: syncguard.backend };
  });
}

async function checkServices({ app }: App): Promise<void> {
  const locks = app.get(LockService);
  const limiter = app.get(AbuseLimiterService);
  const budgets = app.get(BudgetService);
  const secrets = app.get(SecretService);
  const counters = app.get(CounterService);

  await check('lock: callers wait in order, one at a time', [0, 1, 2, 3], async () => {
    const order: number[] = [];
    let inside = 0;
    const body = (i: number) => async (): Promise<void> => {
      if (++inside > 1) throw new Error('two inside');
      await new Promise((resolve) => setTimeout(resolve, 5));
      order.push(i);
      inside--;
    };
    const calls: Promise<void>[] = [];
    for (let i = 0; i < 4; i++) calls.push(locks.lock(body(i), { key: 'checks:queue' }));
    await Promise.all(calls);
    return order;
  });
  await check('lock: fences rise, and an old one is refused', [true, true, false], async () => {
    const fences = app.get(FenceGuard);
    const held = async (): Promise<{ fence: string; lockId: string }> =>
      locks.lock(({ fence, lockId }) => ({ fence, lockId }), { key: 'checks:fence' });
    const [older, newer] = [await held(), await held()];
    const apply = async (lock: typeof older): Promise<boolean> =>
      (await fences.apply({ resource: 'checks:resource', ...lock })).ok;
    return [newer.fence > older.fence, await apply(newer), await apply(older)];
  });
  const held = await locks.acquire({ key: 'checks:held', ttlMs: WINDOW_MS });
  await check('lock: skipped while held', [true, 'skipped'], async () => [
    held.ok,
    await locks.lock(() => 'ran', { key: 'checks:held', onContention: () => 'skipped' }),
  ]);
  await checkErrors('LockError', 'AcquisitionTimeout', 423, () =>
    locks.lock(() => 'ran', { key: 'checks:held', timeoutMs: 0 }),
  );
  await checkErrors('LockError', 'AlreadyHeld', 500, () =>
    locks.lock(() => locks.lock(() => 'ran', { key: 'checks:twice' }), { key: 'checks:twice' }),
  );
  await check('limit: counts and is forgiven', [true, true, false, true], async () => {
    const policy = { name: 'checks-direct', limit: 2, windowMs: WINDOW_MS };
    const allowed: boolean[] = [];
    for (let i = 0; i < 3; i++) allowed.push((await limiter.check('ann', policy)).allowed);
    await limiter.reset('ann', policy);
    return [...allowed, (await limiter.check('ann', policy)).allowed];
  });
  await check('budget: reserved, finalized and summed up', [true, true, 30, true], async () => {
    const hold = await budgets.reserve({ scopes: ['life:sum'], amount: 80 });
    const settled = hold.ok && (await budgets.finalize(hold, 30));
    const [balance] = await budgets.balance({ scope: 'life:sum' });
    return [hold.ok, settled && settled.ok, balance?.committed, (await budgets.verify()).ok];
  });
  await check('secret: bytes come back, and burn for good', ['00ff80', true, 'burned'], async () => {
    const { id } = await secrets.create({ payload: Buffer.from('00ff80', 'hex'), views: 3 });
    const first = await secrets.view(id);
    const burned = await secrets.burn(id);
    const second = await secrets.view(id);
    return [first.ok && Buffer.from(first.payload).toString('hex'), burned.ok, !second.ok && second.reason];
  });
  await check('counter: stops at its maximum', [true, true, false], async () => {
    const results: boolean[] = [];
    for (let i = 0; i < 3; i++)
      results.push((await counters.increment('checks', { max: 2, windowMs: WINDOW_MS })).ok);
    return results;
  });
  await checkErrors('LockError', 'InvalidArgument', 400, () => locks.acquire({ key: '', ttlMs: 1 }));
  await checkErrors('TooManyAttemptsError', 'RateLimited', 429, async () => {
    for (let i = 0; i < 2; i++)
      await limiter.limiter('bob', { name: 'checks-thrown', limit: 1, windowMs: WINDOW_MS });
  });
  await checkErrors('BudgetInputError', 'InvalidArgument', 400, () =>
    budgets.reserve({ scopes: ['nobody:1'], amount: 1 }),
  );
  await checkErrors('BudgetExceededError', 'BudgetExceeded', 402, () =>
    budgets.run(() => 1, { scopes: ['life:over'], amount: 101 }),
  );
  await checkErrors('BudgetConflictError', 'BudgetConflict', 409, async () => {
    for (let i = 0; i < 2; i++)
      await budgets.run(() => 1, { scopes: ['life:twice'], amount: 1, id: 'checks' });
  });
  await checkErrors('SecretError', 'SecretConflict', 409, async () => {
    for (let i = 0; i < 2; i++) await secrets.create({ id: 'checks', payload: 'x', views: 1 });
  });
  await checkErrors('SyncGuardConfigError', 'InvalidArgument', 500, () =>
    SyncGuardModule.forRoot({ keyPrefix: '' }),
  );
  await checkErrors('InvalidResultError', 'unexpected_reply', 500, () => compat.parseDecrementResult(7));
}

/** Nobody listens on the port that it returns. */
async function closedPort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

async function withoutRedis(): Promise<App> {
  const redis = `redis://127.0.0.1:${await closedPort()}`;
  return listening({ redis, budget: BUDGET, commandTimeoutMs: 100 });
}

async function checkOutage({ app, port }: App): Promise<void> {
  const unavailable = [503, 'ServiceUnavailable', true];
  const refused = async (path: string): Promise<unknown[]> => outcome(await post(path, port));
  const statuses = async (path: string): Promise<number[]> => [
    (await post(path, port)).status,
    (await post(path, port)).status,
  ];
  await check('outage: a lock is 503', unavailable, () => refused('pay/8'));
  await check('outage: a budget is 503', unavailable, () => refused('spend/month'));
  await check('outage: a secret is 503', unavailable, () => refused('secrets'));
  await check('outage: a limit that is closed is 503', unavailable, () => refused('closed'));
  await check('outage: a limit that is open lets all in', [201, 201], () => statuses('open'));
  await check('outage: a limit in memory counts here', [201, 429], () => statuses('memory'));
  await check('outage: health is down', 'down', async () => {
    const { syncguard } = (await ask('GET', 'health', port)).body as { syncguard: Record<string, unknown> };
    return syncguard.status;
  });
  await checkErrors('LimitError', 'ServiceUnavailable', 503, () =>
    app
      .get(AbuseLimiterService)
      .check('ann', { name: 'x', limit: 1, windowMs: WINDOW_MS, onError: 'closed' }),
  );
  await checkErrors('CounterError', 'ServiceUnavailable', 503, () =>
    app.get(CounterService).increment('checks', { max: 2, windowMs: WINDOW_MS }),
  );
  await checkErrors('BudgetUnavailableError', 'ServiceUnavailable', 503, () =>
    app.get(BudgetService).balance({ scope: 'life:x' }),
  );
  await app.close();
}

async function checkEntries(): Promise<void> {
  await check('testing: a clock that a test moves', [true, false, true], async () => {
    const app = await NestFactory.createApplicationContext(
      { module: class Tested {}, imports: [SyncGuardTestingModule.forRoot()] },
      { logger: false },
    );
    const locks = app.get(LockService);
    const acquire = async (): Promise<boolean> => (await locks.acquire({ key: 'checks', ttlMs: 1_000 })).ok;
    const taken = [await acquire(), await acquire()];
    app.get(FakeClock).advance(3_000);
    taken.push(await acquire());
    app.get(SyncGuardTesting);
    await app.close();
    return taken;
  });
  await check('core and compat: of one piece with the package', [true, true, true], async () => {
    const lock = await core.createMemoryBackend().acquire({ key: 'checks', ttlMs: 1_000 });
    return [core.LockError === LockError, compat.SyncGuardError === SyncGuardError, lock.ok];
  });
  await check('boot: two global modules are refused', 'MODULE_IMPORTED_TWICE', async () => {
    const twice = {
      module: class Twice {},
      imports: [SyncGuardModule.forRoot({}), moduleOf({ keyPrefix: 'other' })],
    };
    const boot = NestFactory.createApplicationContext(twice, { logger: false, abortOnError: false });
    return ((await thrownBy(() => boot)) as SyncGuardError).code;
  });
}

async function main(): Promise<void> {
  const outage = withoutRedis(); // Its boot waits for Redis, meanwhile the others are checked.
  const keyPrefix = `checks-${randomUUID()}`;
  const app = await listening({ redis: REDIS_URL, keyPrefix, budget: BUDGET, shutdown: { drainMs: 500 } });
  await checkHttp(app);
  await checkServices(app);
  await app.app.close();
  await checkEntries();
  await checkOutage(await outage);
  if (failed > 0) process.exitCode = 1;
}

void main();
