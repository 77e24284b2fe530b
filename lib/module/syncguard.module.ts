import {
  ConfigurableModuleBuilder,
  type DynamicModule,
  type ExistingProvider,
  type FactoryProvider,
  Inject,
  type InjectionToken,
  Module,
  type NestModule,
  type OnApplicationShutdown,
  type OnModuleInit,
  type Provider,
} from '@nestjs/common';
import { APP_FILTER, HttpAdapterHost, ModuleRef, ModulesContainer } from '@nestjs/core';
import { budgetEvents } from '../assembly/observed-budgets.js';
import { ScriptLoader } from '../assembly/script-loader.js';
import { BudgetService } from '../budget/budget.service.js';
import { BUDGET_SERVICE } from '../budget/with-budget.decorator.js';
import { areResponsesWanted } from '../core/current-response.js';
import { SyncGuardConfigError } from '../core/errors.js';
import { boolean, knownOptions } from '../core/validate.js';
import { CounterService } from '../counter/counter.service.js';
import { WaitingRoom } from '../core/waiting-room.js';
import { AbuseLimiterService } from '../limit/abuse-limiter.service.js';
import { ROUTE_LIMITER } from '../limit/route/rate-limit.metadata.js';
import { RouteLimiter } from '../limit/route/route-limiter.js';
import { FenceGuard } from '../lock/fence-guard.js';
import { LockService } from '../lock/lock.service.js';
import { LOCK_SERVICE } from '../lock/with-lock.decorator.js';
import { haveOneServer } from '../redis/same-server.js';
import { OnceService } from '../once/once.service.js';
import { ONCE_SERVICE } from '../once/route/once.decorator.js';
import { ONCE_ROUTES } from '../once/route/once-plan.js';
import { OnceRoutes } from '../once/route/once-routes.js';
import { SecretService } from '../secret/secret.service.js';
import { catchAllsBeforeOurs } from '../transport/catch-all-filters.js';
import { globalEnhancers } from '../transport/global-settings.js';
import { keepResponses } from '../transport/keep-responses.js';
import {
  DisabledExceptionFilter,
  MAX_RETRY_AFTER_MS,
  SyncGuardExceptionFilter,
} from '../transport/syncguard-exception.filter.js';
import { SyncGuardHealthIndicator } from './syncguard.health.js';
import { hideOptions } from './hidden-options.js';
import {
  OPTION_NAMES,
  resolveOptions,
  type SyncGuardModuleAsyncOptions,
  type SyncGuardModuleOptions,
  type SyncGuardOptions,
} from './syncguard.options.js';
import { makeParts, type Parts, scriptLoader, SYNCGUARD_PARTS, warn } from './syncguard.parts.js';

/** The token of the options as the user passed them. */
export const SYNCGUARD_OPTIONS = Symbol.for('syncguard:options');

const { ConfigurableModuleClass } = new ConfigurableModuleBuilder<SyncGuardOptions>({
  optionsInjectionToken: SYNCGUARD_OPTIONS,
})
  .setClassMethodName('forRoot')
  .setFactoryMethodName('createSyncGuardOptions')
  .setExtras({ isGlobal: true }, (definition, { isGlobal }) => ({ ...definition, global: isGlobal }))
  .build();

const ASYNC_OPTIONS = [
  'imports',
  'inject',
  'useFactory',
  'useClass',
  'useExisting',
  'provideInjectionTokensFrom',
  'isGlobal',
] as const;

function locksOf({ backends, options, emit, connection }: Parts): LockService {
  const locks = new LockService(backends.lock, { lock: options.lock, shutdown: options.shutdown, emit });
  connection?.onBack(() => locks.renewAll());
  return locks;
}

/** Replaces the options that a provider gives by a copy which shows no passwords. */
function withHiddenOptions(definition: DynamicModule): DynamicModule {
  const hide = (provider: Provider): Provider => {
    if (typeof provider !== 'object' || provider.provide !== SYNCGUARD_OPTIONS) return provider;
    if ('useValue' in provider) return { ...provider, useValue: hideOptions(provider.useValue) };
    if (!('useFactory' in provider)) return provider;
    const { useFactory: make } = provider;
    const useFactory = async (...args: unknown[]): Promise<unknown> => hideOptions(await make(...args));
    // Nest 10 tells dynamic modules apart by the texts of their functions.
    return { ...provider, useFactory: Object.assign(useFactory, { toString: () => String(make) }) };
  };
  return { ...definition, providers: definition.providers?.map(hide) ?? [] };
}

/** Provides what is made of the parts, and of what Nest injects besides. */
const made = <Rest extends unknown[]>(
  provide: InjectionToken,
  make: (parts: Parts, ...rest: Rest) => unknown,
  ...inject: InjectionToken[]
): FactoryProvider => ({ provide, useFactory: make, inject: [SYNCGUARD_PARTS, ...inject] });

/** What the module exports. */
const exported: (FactoryProvider | ExistingProvider)[] = [
  made(ScriptLoader, ({ connection }) => scriptLoader(connection)),
  made(LockService, locksOf),
  { provide: LOCK_SERVICE, useExisting: LockService },
  made(FenceGuard, ({ backends, options }) => new FenceGuard(backends.fence, options)),
  made(AbuseLimiterService, ({ backends: { limit, limitFallback }, options, emit }) => {
    return new AbuseLimiterService(limit, limitFallback ?? limit, { ...options, emit });
  }),
  made(
    ROUTE_LIMITER,
    ({ options }, limiter: AbuseLimiterService, modules: ModulesContainer, moduleRef: ModuleRef) =>
      new RouteLimiter(limiter, options, modules, moduleRef),
    ...[AbuseLimiterService, ModulesContainer, ModuleRef],
  ),
  made(BudgetService, ({ backends, options: { budget, shutdown }, emit }) => {
    return new BudgetService(backends.budget, { ...budget, shutdown }, budgetEvents(emit));
  }),
  { provide: BUDGET_SERVICE, useExisting: BudgetService },
  made(SecretService, ({ backends, options }) => new SecretService(backends.secret, options.secret)),
  made(OnceService, ({ backends, options: { once, shutdown, lock }, hashSecret, emit }) => {
    const waitingRoom = new WaitingRoom(lock.maxWaiting);
    return new OnceService(backends.once, { once, shutdown, hashSecret: hashSecret(), waitingRoom, emit });
  }),
  { provide: ONCE_SERVICE, useExisting: OnceService },
  // It comes after RouteLimiter, so that its guard is behind that of limits.
  made(
    ONCE_ROUTES,
    (_, once: OnceService, modules: ModulesContainer, moduleRef: ModuleRef, host: HttpAdapterHost) =>
      new OnceRoutes(once, modules, moduleRef, host),
    ...[OnceService, ModulesContainer, ModuleRef, HttpAdapterHost, ROUTE_LIMITER],
  ),
  made(CounterService, ({ backends }) => new CounterService(backends.counter)),
  made(SyncGuardHealthIndicator, ({ connection }) => {
    return new SyncGuardHealthIndicator(connection ? 'redis' : 'memory', async () => connection?.check());
  }),
  made(MAX_RETRY_AFTER_MS, ({ options }) => options.maxRetryAfterMs),
];

const providers: Provider[] = [
  { provide: SYNCGUARD_PARTS, useFactory: makeParts, inject: [SYNCGUARD_OPTIONS] },
  ...exported,
  made(
    APP_FILTER,
    ({ options: { http, maxRetryAfterMs } }, host: HttpAdapterHost) =>
      http ? new SyncGuardExceptionFilter(host, maxRetryAfterMs) : new DisabledExceptionFilter(),
    HttpAdapterHost,
  ),
];

/**
 * Provides locks, limits, budgets and secrets to a Nest app. The module is global, so import it once.
 *
 * @example
 * \@Module({ imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })] })
 * export class AppModule {}
 */
@Module({ providers, exports: exported.map(({ provide }) => provide) })
export class SyncGuardModule implements NestModule, OnModuleInit, OnApplicationShutdown {
  readonly #parts: Parts;
  readonly #modules: ModulesContainer;
  readonly #moduleRef: ModuleRef;
  readonly #host: HttpAdapterHost;

  /** @internal */
  constructor(
    @Inject(SYNCGUARD_PARTS) parts: Parts,
    @Inject(ModulesContainer) modules: ModulesContainer,
    @Inject(ModuleRef) moduleRef: ModuleRef,
    @Inject(HttpAdapterHost) host: HttpAdapterHost,
  ) {
    this.#parts = parts;
    this.#modules = modules;
    this.#moduleRef = moduleRef;
    this.#host = host;
  }

  /**
   * Creates the module with options that are known now.
   *
   * @param options - without options: the memory backend and all defaults
   * @throws SyncGuardConfigError at once, naming the malformed option, its bound, the value and its type
   */
  static forRoot(options: SyncGuardModuleOptions = {}): DynamicModule {
    knownOptions('options', options, [...OPTION_NAMES, 'isGlobal']);
    const { isGlobal, ...rest } = options;
    resolveOptions(rest);
    const checked = { ...rest, isGlobal: boolean('isGlobal', isGlobal ?? true) };
    return { ...withHiddenOptions(ConfigurableModuleClass.forRoot(checked)), module: this };
  }

  /**
   * Creates the module with options from other providers: `useFactory` with `inject`, or `useClass` or `useExisting` of
   * a {@link SyncGuardOptionsFactory}. A malformed option of the module fails the boot.
   *
   * @throws SyncGuardConfigError at once if not exactly one of the three is given, or if an option is unknown
   */
  static forRootAsync(options: SyncGuardModuleAsyncOptions): DynamicModule {
    const given = knownOptions('forRootAsync', options ?? null, ASYNC_OPTIONS);
    if ([given.useFactory, given.useClass, given.useExisting].filter(Boolean).length !== 1)
      throw new SyncGuardConfigError(
        'forRootAsync needs exactly one of useFactory, useClass and useExisting.',
      );
    const checked = { ...options, isGlobal: boolean('isGlobal', given.isGlobal ?? true) };
    return { ...withHiddenOptions(ConfigurableModuleClass.forRootAsync(checked)), module: this };
  }

  /** Nest calls this when it has its HTTP adapter, and has not registered the routes yet. */
  configure(): void {
    if (areResponsesWanted()) keepResponses(this.#host);
  }

  /** Nest calls this. It refuses a module that is imported twice, and warns of what stands in the way of its filter. */
  onModuleInit(): void {
    this.#refuseTwo();
    this.#refuseNestedPrefixes();
    const enhancers = globalEnhancers(this.#moduleRef);
    if (!enhancers)
      warn(
        'NEST_UNKNOWN: This version of Nest hides its global guards and filters, so SyncGuard could not check them.',
      );
    for (const filter of catchAllsBeforeOurs(enhancers?.filters ?? []))
      warn(
        `FILTER_CATCHES_ALL: ${filter} catches every error before SyncGuardExceptionFilter does. So a busy lock (423) or a used-up budget (429 or 402) may be answered with 500. Call \`toHttpException(error)\` in ${filter} and set \`http: false\`, or bind SyncGuardExceptionFilter after it.`,
      );
  }

  /** Throws if the module is global twice. The locks of the two would not exclude each other. */
  #refuseTwo(): void {
    const globals = [...this.#modules.values()].filter(
      ({ metatype, isGlobal }) => metatype === SyncGuardModule && isGlobal,
    );
    if (globals.length > 1)
      throw new SyncGuardConfigError(`SyncGuardModule is imported ${globals.length} times in this app.`, {
        code: 'MODULE_IMPORTED_TWICE',
        hint: 'Import it once, in the root module, because it is global. To keep several on purpose, set `isGlobal: false` on each.',
      });
  }

  /** Throws if another module uses our Redis with a prefix that begins with ours: a lock of each could have one name. */
  #refuseNestedPrefixes(): void {
    const our = this.#parts.connection?.namespace;
    if (!our) return;
    for (const { metatype, providers } of this.#modules.values()) {
      if (metatype !== SyncGuardModule) continue;
      const { namespace: their } = (providers.get(SYNCGUARD_PARTS)?.instance as Parts).connection ?? {};
      if (!their?.prefix.startsWith(`${our.prefix}:`) || !haveOneServer(our.client, their.client)) continue;
      throw new SyncGuardConfigError(
        `Two SyncGuardModules of this app use one Redis, and the keyPrefix "${our.prefix}" of one is the beginning of the other's, "${their.prefix}". So a lock of each could have one name.`,
        {
          code: 'KEY_PREFIX_NESTED',
          hint: `Choose prefixes of which none begins as another does up to a ":", such as "${their.prefix.replaceAll(':', '-')}".`,
        },
      );
    }
  }

  /** Closes the connection. Nest calls this after every service has drained. */
  async onApplicationShutdown(): Promise<void> {
    await this.#parts.connection?.close();
  }
}
