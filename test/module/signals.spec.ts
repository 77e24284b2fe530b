import { Test, type TestingModule } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  FenceGuard,
  type LockHandle,
  LockService,
  OnceService,
  SecretService,
  SyncGuardModule,
} from 'nestjs-syncguard';
import ts from 'typescript';
import { sources } from '../docs/sources.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { granted } from '../lock/lock.contract.js';

// What every call of every service does with its options: the calls are read from the classes themselves, so that a new one
// cannot be forgotten.

const SERVICES = {
  LockService,
  FenceGuard,
  AbuseLimiterService,
  CounterService,
  BudgetService,
  SecretService,
  OnceService,
};
type Service = keyof typeof SERVICES;
type Call = (options: object) => readonly unknown[];

const OPTIONS = {};
const POLICY = { name: 'p', limit: 5, windowMs: 60_000 };
const ID = 'A'.repeat(22);
const RECEIPT = `receipt.${'a'.repeat(22)}.${'b'.repeat(22)}`;
const HOLD = { scopes: ['org'], amount: 1 };

/** Arguments of each call, with these options. */
const CALLS: Readonly<Record<Service, Readonly<Record<string, Call>>>> = {
  LockService: {
    acquire: (options) => [{ key: 'k', ttlMs: 30_000, ...options }],
    release: (options) => [{ lockId: ID, ...options }],
    extend: (options) => [{ lockId: ID, ttlMs: 30_000, ...options }],
    isLocked: (options) => [{ key: 'k', ...options }],
    lookup: (options) => [{ key: 'k', ...options }],
    getByKeyRaw: (options) => ['k', options],
    getByIdRaw: (options) => [ID, options],
    lock: (options) => [() => 1, { key: 'k', ...options }],
    list: (options) => [options],
    waiters: (options) => ['k', options],
    forceRelease: (options) => ['k', { fence: '000000000000001', reason: 'it hangs', ...options }],
    holder: (options) => ['k', options],
  },
  FenceGuard: {
    apply: (options) => [{ resource: 'r', fence: '000000000000001', lockId: ID, ...options }],
    get: (options) => ['k', options],
  },
  AbuseLimiterService: {
    check: (options) => ['k', POLICY, options],
    limiter: (options) => ['k', POLICY, options],
    peek: (options) => ['k', POLICY, options],
    reset: (options) => ['k', POLICY, options],
    block: (options) => ['k', POLICY, 1_000, 'reason', options],
    unblock: (options) => ['k', POLICY, options],
    forgive: (options) => ['k', POLICY, 1, options],
    blocked: (options) => [options],
    lift: (options) => [{ ...POLICY, keyBy: 'body.email' }, { 'body.email': 'ann@example.org' }, options],
  },
  CounterService: {
    increment: (options) => ['k', { max: 5, windowMs: 60_000, ...options }],
    peek: (options) => ['k', options],
    reset: (options) => ['k', options],
  },
  BudgetService: {
    reserve: (options) => [{ ...HOLD, ...options }],
    finalize: (options) => [{ id: 'op' }, 1, options],
    abort: (options) => [{ id: 'op' }, options],
    extend: (options) => [{ id: 'op' }, 1_000, options],
    charge: (options) => [{ ...HOLD, id: 'op', ...options }],
    refund: (options) => [{ id: 'op' }, 1, 'refund', options],
    credit: (options) => [{ scope: 'org', period: 'lifetime', amount: 1, id: 'op', ...options }],
    setLimit: (options) => [{ scope: 'org', period: 'lifetime', limit: 5, ...options }],
    balance: (options) => [{ scope: 'org', ...options }],
    get: (options) => [{ id: 'op' }, options],
    list: (options) => [options],
    roots: (options) => [options],
    balances: (options) => [options],
    reap: (options) => [options],
    verify: (options) => ['default', options],
    run: (options) => [() => 1, { ...HOLD, ...options }],
  },
  SecretService: {
    create: (options) => [{ payload: 'x', views: 1, ...options }],
    view: (options) => ['id', options],
    peek: (options) => ['id', options],
    burn: (options) => ['id', options],
    status: (options) => [RECEIPT, options],
    confirm: (options) => ['id', 'view', options],
    release: (options) => ['id', 'view', options],
  },
  OnceService: {
    run: (options) => [() => 1, { key: 'k', ...options }],
    get: (options) => ['k', options],
    list: (options) => [options],
    settle: (options) => ['k', { value: 1 }, options],
    forget: (options) => ['k', options],
  },
};

/** What a handle takes: a signal by its place, and no options. */
const HANDLE_CALLS: Readonly<Record<string, (handle: LockHandle, signal: AbortSignal) => Promise<unknown>>> =
  {
    release: (handle, signal) => handle.release(signal),
    extend: (handle, signal) => handle.extend(30_000, signal),
  };

const all = Object.entries(CALLS).flatMap(([service, calls]) =>
  Object.keys(calls).map((call) => [service as Service, call] as const),
);

/** Public methods that ask a backend, from the source of the class. */
function methodsOf(service: string): string[] {
  const found = sources
    .flatMap(({ statements }) => statements.filter(ts.isClassDeclaration))
    .find(({ name }) => name?.text === service);
  const methods = (found?.members ?? ([] as readonly ts.ClassElement[]))
    .filter(ts.isMethodDeclaration)
    .filter(({ name }) => ts.isIdentifier(name) && !/^on(Module|Application)/.test(name.text))
    .filter(({ type }) => type?.getText().startsWith('Promise'))
    .filter((method) => !ts.getJSDocTags(method).some(({ tagName }) => tagName.text === 'internal'));
  return [...new Set(methods.map(({ name }) => name.getText()))];
}

it.each(Object.keys(SERVICES) as Service[])('every public method of %s is tried here', (service) => {
  expect(Object.keys(CALLS[service]).sort()).toEqual(methodsOf(service).sort());
});

it('every method of a handle that takes a signal is tried here', () => {
  const handle = sources
    .flatMap(({ statements }) => statements.filter(ts.isInterfaceDeclaration))
    .find(({ name }) => name.text === 'LockHandle');
  const methods = (handle?.members ?? ([] as readonly ts.TypeElement[])).filter(ts.isMethodSignature);
  expect(Object.keys(HANDLE_CALLS)).toEqual(methods.map(({ name }) => name.getText()));
});

describe.each(['memory', 'Redis'] as const)('on %s', (backend) => {
  let module: TestingModule;
  let client: Redis | undefined;
  /** Called for each command that leaves this process. */
  let onCommand: () => void = () => {};

  beforeAll(async () => {
    await freshRedis();
    client = backend === 'Redis' ? workerRedis().client() : undefined;
    if (client) {
      const send = client.sendCommand.bind(client);
      client.sendCommand = (...args) => {
        const sent = send(...args);
        onCommand();
        return sent;
      };
    }
    const limits = [{ scope: 'org', period: 'lifetime', limit: 1_000 } as const];
    const syncGuard = SyncGuardModule.forRoot({
      redis: client,
      operations: true,
      budget: { limits, reaper: false },
    });
    module = await Test.createTestingModule({ imports: [syncGuard] })

      .compile();
    await module.init();
  });
  afterAll(() => module.close());
  afterEach(() => (onCommand = () => {}));

  const call = async (service: Service, name: string, options: object): Promise<unknown> => {
    const target = module.get<Record<string, (...args: unknown[]) => Promise<unknown>>>(SERVICES[service]);
    return target[name]?.(...(CALLS[service][name] as Call)(options));
  };

  it.each(all)(
    '%s.%s refuses an option that it does not know, and a signal that is none',
    async (service, name) => {
      await expect(call(service, name, { bogus: 1 })).rejects.toMatchObject({
        code: 'InvalidArgument',
        message: expect.stringMatching(/bogus is not an option/) as string,
      });
      await expect(call(service, name, { signal: 'none' })).rejects.toMatchObject({
        code: 'InvalidArgument',
      });
    },
  );

  it.each(all.filter(([service, name]) => CALLS[service][name]?.(OPTIONS).at(-1) === OPTIONS))(
    '%s.%s refuses options that are none at all, and takes a signal that has not aborted',
    async (service, name) => {
      for (const none of [null, 'bogus', 5, ['bogus']])
        await expect(call(service, name, none as never)).rejects.toMatchObject({ code: 'InvalidArgument' });
      const { signal } = new AbortController();
      expect(await call(service, name, { signal }).then(() => 'taken')).toBe('taken');
    },
  );

  it.each(all)('%s.%s rejects when it was aborted before, and sends nothing', async (service, name) => {
    let commands = 0;
    onCommand = () => commands++;
    await expect(call(service, name, { signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'Aborted',
    });
    expect(commands).toBe(0);
  });

  if (backend === 'Redis')
    it.each(all)('%s.%s rejects when it is aborted meanwhile, without the answer', async (service, name) => {
      const controller = new AbortController();
      const reason = new Error('the caller has left');
      onCommand = () => controller.abort(reason);
      await expect(call(service, name, { signal: controller.signal })).rejects.toMatchObject({
        code: 'Aborted',
        cause: reason,
      });
    });

  describe.each(Object.entries(HANDLE_CALLS))('LockHandle.%s', (_, handleCall) => {
    let handle: LockHandle;
    beforeEach(async () => {
      handle = granted(await module.get(LockService).acquire({ key: 'handle', ttlMs: 30_000 }));
    });
    afterEach(async () => void (await handle.release()));

    it('refuses a signal that is none', async () => {
      const none = 'none' as unknown as AbortSignal;
      await expect(handleCall(handle, none)).rejects.toMatchObject({ code: 'InvalidArgument' });
    });

    it('rejects when it was aborted before, and sends nothing', async () => {
      let commands = 0;
      onCommand = () => commands++;
      await expect(handleCall(handle, AbortSignal.abort())).rejects.toMatchObject({ code: 'Aborted' });
      expect(commands).toBe(0);
    });

    it('rejects when it was aborted before while another release is on its way', async () => {
      const first = handle.release();
      await expect(handleCall(handle, AbortSignal.abort())).rejects.toMatchObject({ code: 'Aborted' });
      expect(await first).toEqual({ ok: true });
    });

    it('rejects when it was aborted before, also of a lock that was released', async () => {
      await handle.release();
      await expect(handleCall(handle, AbortSignal.abort())).rejects.toMatchObject({ code: 'Aborted' });
    });

    if (backend === 'Redis')
      it('rejects when it is aborted meanwhile, without the answer, and works again', async () => {
        const controller = new AbortController();
        const reason = new Error('the caller has left');
        onCommand = () => controller.abort(reason);
        await expect(handleCall(handle, controller.signal)).rejects.toMatchObject({
          code: 'Aborted',
          cause: reason,
        });
        onCommand = () => {};
        await expect(handle.release()).resolves.toHaveProperty('ok');
        expect(await module.get(LockService).isLocked({ key: 'handle' })).toBe(false);
      });
  });

  if (backend === 'Redis')
    it('leaves no lock and no secret of a call that was aborted meanwhile', async () => {
      await client?.flushall();
      for (const [service, name] of [
        ['LockService', 'acquire'],
        ['LockService', 'lock'],
        ['SecretService', 'create'],
      ] as const) {
        const controller = new AbortController();
        onCommand = () => controller.abort();
        await expect(call(service, name, { signal: controller.signal })).rejects.toMatchObject({
          code: 'Aborted',
        });
        onCommand = () => {};
        const left = async (): Promise<string[]> =>
          ((await client?.keys('syncguard:k')) ?? []).concat((await client?.keys('syncguard/secret*')) ?? []);
        await eventually(async () => expect(await left()).toEqual([]));
      }
    });
});
