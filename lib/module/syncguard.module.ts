import {
  type DynamicModule,
  Inject,
  Logger,
  Module,
  type OnApplicationShutdown,
  type OnModuleInit,
  type Provider,
} from '@nestjs/common';
import { APP_FILTER, HttpAdapterHost, ModuleRef, ModulesContainer } from '@nestjs/core';
import type { Backends } from '../assembly/backends.js';
import { memoryBackends } from '../assembly/memory-backends.js';
import { observedBackends } from '../assembly/observed-backends.js';
import { budgetEvents } from '../assembly/observed-budgets.js';
import { redisBackends } from '../assembly/redis-backends.js';
import { RedisConnection } from '../assembly/redis-connection.js';
import { ScriptLoader } from '../assembly/script-loader.js';
import { BudgetService } from '../budget/budget.service.js';
import { BUDGET_SERVICE } from '../budget/with-budget.decorator.js';
import { globalEnhancers } from '../transport/global-enhancers.js';
import { catchAllsBeforeOurs } from '../transport/catch-all-filters.js';
import {
  DisabledExceptionFilter,
  MAX_RETRY_AFTER_MS,
  SyncGuardExceptionFilter,
} from '../transport/syncguard-exception.filter.js';
import { AbuseLimiterService } from '../limit/abuse-limiter.service.js';
import { LimitDecisions } from '../limit/limit.decisions.js';
import { CounterService } from '../counter/counter.service.js';
import { ROUTE_LIMITER } from '../limit/route/rate-limit.metadata.js';
import { RouteLimiter } from '../limit/route/route-limiter.js';
import { FenceGuard } from '../lock/fence-guard.js';
import { MAX_RETRIES_UNUSED } from '../lock/lock.options.js';
import { LockService } from '../lock/lock.service.js';
import { LOCK_SERVICE } from '../lock/with-lock.decorator.js';
import { SecretService } from '../secret/secret.service.js';
import { SyncGuardConfigError } from '../core/errors.js';
import { SyncGuardHealthIndicator } from './syncguard.health.js';
import { ConfigurableModuleClass } from './syncguard.module-definition.js';
import {
  type ResolvedSyncGuardOptions,
  resolveOptions,
  type SyncGuardModuleAsyncOptions,
  type SyncGuardModuleOptions,
  type SyncGuardOptions,
  OPTION_NAMES,
} from './syncguard.options.js';
import {
  RESOLVED_OPTIONS,
  SYNCGUARD_BACKENDS,
  SYNCGUARD_CONNECTION,
  SYNCGUARD_OPTIONS,
  SYNCGUARD_TELEMETRY,
} from './syncguard.tokens.js';
import { createTelemetry } from '../telemetry/telemetry.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { boolean, knownOptions } from '../core/validate.js';

const ASYNC_OPTIONS = [
  'imports',
  'inject',
  'useFactory',
  'useClass',
  'useExisting',
  'provideInjectionTokensFrom',
  'isGlobal',
] as const;

const logger = new Logger('SyncGuard');
const warn = (message: string): void => logger.warn(message);

/** Checks the options, and warns of one that has no effect. */
function optionsAtBoot(options: SyncGuardOptions): ResolvedSyncGuardOptions {
  const resolved = resolveOptions(options);
  if (options?.lock?.maxRetries !== undefined && resolved.lock.fair) warn(MAX_RETRIES_UNUSED);
  return resolved;
}

async function openConnection(options: ResolvedSyncGuardOptions): Promise<RedisConnection | undefined> {
  const { redis } = options;
  if (redis === undefined) {
    const message =
      'MEMORY_BACKEND: SyncGuard runs in memory, so this process shares nothing with others. Set the option `redis` to share.';
    if (process.env.NODE_ENV === 'production') warn(message);
    else logger.log(message);
    return undefined;
  }
  const connection = new RedisConnection({ ...options, redis });
  new ScriptLoader(connection.runner).load();
  const { fault, warnings } = await connection.opened();
  if (fault)
    warn(
      `REDIS_UNAVAILABLE: The app starts without Redis (${fault.code}): ${fault.message} ${causeOf(fault)}`.trim(),
    );
  for (const warning of warnings) warn(warning);
  return connection;
}

/** Returns the message of the server or the system. It names the address, never the password. */
const causeOf = ({ cause }: { cause?: unknown }): string => {
  const message = (cause as { message?: unknown } | undefined)?.message;
  return typeof message === 'string' ? `(${message})` : '';
};

const providers: Provider[] = [
  { provide: RESOLVED_OPTIONS, useFactory: optionsAtBoot, inject: [SYNCGUARD_OPTIONS] },
  { provide: SYNCGUARD_CONNECTION, useFactory: openConnection, inject: [RESOLVED_OPTIONS] },
  {
    provide: ScriptLoader,
    useFactory: (connection?: RedisConnection) => new ScriptLoader(connection?.runner),
    inject: [SYNCGUARD_CONNECTION],
  },
  {
    provide: SYNCGUARD_TELEMETRY,
    useFactory: ({ telemetry }: ResolvedSyncGuardOptions) => telemetry && createTelemetry(telemetry, warn),
    inject: [RESOLVED_OPTIONS],
  },
  {
    provide: SYNCGUARD_BACKENDS,
    useFactory: async (options: ResolvedSyncGuardOptions, emit?: Emit, connection?: RedisConnection) => {
      const backends: Backends = connection
        ? redisBackends(connection.runner, options, warn)
        : memoryBackends(options);
      if (options.lock.fair && connection?.runner.readiness.ready) await backends.lock.prepare?.();
      return observedBackends(backends, emit);
    },
    inject: [RESOLVED_OPTIONS, SYNCGUARD_TELEMETRY, SYNCGUARD_CONNECTION],
  },
  {
    provide: LockService,
    useFactory: (
      { lock }: Backends,
      options: ResolvedSyncGuardOptions,
      emit?: Emit,
      connection?: RedisConnection,
    ) => {
      const locks = new LockService(lock, { lock: options.lock, shutdown: options.shutdown, emit });
      connection?.onBack(() => locks.renewAll());
      return locks;
    },
    inject: [SYNCGUARD_BACKENDS, RESOLVED_OPTIONS, SYNCGUARD_TELEMETRY, SYNCGUARD_CONNECTION],
  },
  { provide: LOCK_SERVICE, useExisting: LockService },
  {
    provide: FenceGuard,
    useFactory: ({ fence }: Backends, options: ResolvedSyncGuardOptions) => new FenceGuard(fence, options),
    inject: [SYNCGUARD_BACKENDS, RESOLVED_OPTIONS],
  },
  {
    provide: LimitDecisions,
    useFactory: ({ limit, limitFallback }: Backends, options: ResolvedSyncGuardOptions, emit?: Emit) =>
      new LimitDecisions(limit, limitFallback ?? limit, { ...options.limit, emit }),
    inject: [SYNCGUARD_BACKENDS, RESOLVED_OPTIONS, SYNCGUARD_TELEMETRY],
  },
  {
    provide: AbuseLimiterService,
    useFactory: (decisions: LimitDecisions, { limit, limits }: ResolvedSyncGuardOptions) =>
      new AbuseLimiterService(decisions, { limit, limits }),
    inject: [LimitDecisions, RESOLVED_OPTIONS],
  },
  {
    provide: ROUTE_LIMITER,
    useFactory: (
      ...[decisions, { limit, limits, maxRetryAfterMs }, ...rest]: ConstructorParameters<typeof RouteLimiter>
    ) => new RouteLimiter(decisions, { limit, limits, maxRetryAfterMs }, ...rest),
    inject: [LimitDecisions, RESOLVED_OPTIONS, ModulesContainer, ModuleRef],
  },
  {
    provide: BudgetService,
    useFactory: ({ budget }: Backends, options: ResolvedSyncGuardOptions, emit?: Emit) =>
      new BudgetService(budget, { ...options.budget, shutdown: options.shutdown }, budgetEvents(emit)),
    inject: [SYNCGUARD_BACKENDS, RESOLVED_OPTIONS, SYNCGUARD_TELEMETRY],
  },
  { provide: BUDGET_SERVICE, useExisting: BudgetService },
  {
    provide: SecretService,
    useFactory: ({ secret }: Backends, options: ResolvedSyncGuardOptions) =>
      new SecretService(secret, options.secret),
    inject: [SYNCGUARD_BACKENDS, RESOLVED_OPTIONS],
  },
  {
    provide: CounterService,
    useFactory: ({ counter }: Backends) => new CounterService(counter),
    inject: [SYNCGUARD_BACKENDS],
  },
  SyncGuardHealthIndicator,
  {
    provide: MAX_RETRY_AFTER_MS,
    useFactory: ({ maxRetryAfterMs }: ResolvedSyncGuardOptions) => maxRetryAfterMs,
    inject: [RESOLVED_OPTIONS],
  },
  {
    provide: APP_FILTER,
    useFactory: ({ http, maxRetryAfterMs }: ResolvedSyncGuardOptions, host: HttpAdapterHost) =>
      http ? new SyncGuardExceptionFilter(host, maxRetryAfterMs) : new DisabledExceptionFilter(),
    inject: [RESOLVED_OPTIONS, HttpAdapterHost],
  },
];

/**
 * Provides locks, limits, budgets and secrets to a Nest app. The module is global, so import it once.
 *
 * @example
 * \@Module({ imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })] })
 * export class AppModule {}
 */
@Module({
  providers,
  exports: [
    LockService,
    LOCK_SERVICE,
    FenceGuard,
    AbuseLimiterService,
    ROUTE_LIMITER,
    MAX_RETRY_AFTER_MS,
    BudgetService,
    BUDGET_SERVICE,
    SecretService,
    CounterService,
    ScriptLoader,
    SyncGuardHealthIndicator,
  ],
})
export class SyncGuardModule implements OnModuleInit, OnApplicationShutdown {
  readonly #connection: RedisConnection | undefined;
  readonly #modules: ModulesContainer;
  readonly #moduleRef: ModuleRef;

  /** @internal */
  constructor(
    @Inject(SYNCGUARD_CONNECTION) connection: RedisConnection | undefined,
    @Inject(ModulesContainer) modules: ModulesContainer,
    @Inject(ModuleRef) moduleRef: ModuleRef,
  ) {
    this.#moduleRef = moduleRef;
    this.#connection = connection;
    this.#modules = modules;
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
    return { ...ConfigurableModuleClass.forRoot(checked), module: this };
  }

  /**
   * Creates the module with options from other providers: `useFactory` with `inject`, or `useClass` or
   * `useExisting` of a {@link SyncGuardOptionsFactory}. A malformed option of the module fails the boot.
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
    return { ...ConfigurableModuleClass.forRootAsync(checked), module: this };
  }

  onModuleInit(): void {
    this.#refuseTwo();
    const enhancers = globalEnhancers(this.#moduleRef);
    if (!enhancers)
      warn(
        'NEST_UNKNOWN: This version of Nest hides its global guards and filters, so SyncGuard could not check them.',
      );
    for (const filter of catchAllsBeforeOurs(enhancers?.filters ?? []))
      warn(
        `FILTER_CATCHES_ALL: ${filter} catches every error before SyncGuardExceptionFilter does. So a busy lock (423) or a used-up budget (402) may be answered with 500. Call \`toHttpException(error)\` in ${filter} and set \`http: false\`, or bind SyncGuardExceptionFilter after it.`,
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

  /** Closes the connection. Nest calls this after every service has drained. */
  async onApplicationShutdown(): Promise<void> {
    await this.#connection?.close();
  }
}
