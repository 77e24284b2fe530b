import type { Type } from '@nestjs/common';
import { HttpAdapterHost, type ModuleRef } from '@nestjs/core';
import { SyncGuardConfigError } from '../../core/errors.js';
import { globalEnhancers, globalRouting } from '../../transport/global-settings.js';
import type { ResolvedPolicy } from '../limit.policy.js';
import { mayAllow } from './allowed-paths.js';
import { isGuarded, type Method, methodsOf } from './decorated-methods.js';
import type { HttpRoutes } from '../../transport/http-routes.js';
import { appliesDefault, classOf, guardsOn, isOtherGuard } from './last-guard.js';
import { graphqlOptions } from './graphql-options.js';
import { METHOD } from '../../transport/nest-metadata.js';
import { OUR_GUARD } from './rate-limit.metadata.js';
import { type RouteLimits, type RoutePlans, UNNAMED } from './route-plans.js';

type Warn = (message: string) => void;

/** Checks at boot what an app does around its limits: its global guards, its proxy, its paths. */
export class AppChecks {
  readonly #guards: readonly unknown[];
  readonly #methods: readonly (readonly [Type, Method])[];

  constructor(
    private readonly options: RouteLimits,
    private readonly plans: RoutePlans,
    private readonly routes: HttpRoutes,
    private readonly moduleRef: ModuleRef,
    types: readonly Type[],
  ) {
    this.#guards = globalEnhancers(moduleRef)?.guards ?? [];
    this.#methods = types.flatMap((type) =>
      [...methodsOf(type).values()].filter(isGuarded).map((method) => [type, method] as const),
    );
  }

  /** @throws SyncGuardConfigError RATE_LIMIT_GUARD_NOT_INJECTED */
  run(warn: Warn): void {
    this.#verifyInjected();
    this.#verifyOrder(warn);
    this.#verifyProxy(warn);
    this.#verifyAllowed(warn);
  }

  /** Nest injects nothing into a guard that the app has made by `new`. */
  #verifyInjected(): void {
    const bound = this.#methods.flatMap((place) => place.flatMap(guardsOn));
    for (const guard of [...this.#guards, ...bound])
      if (typeof guard === 'object' && appliesDefault(guard) && !(guard as { routes?: unknown }).routes)
        throw new SyncGuardConfigError(
          'A RateLimitGuard was made by `new`, so Nest has not injected what it needs.',
          {
            code: 'RATE_LIMIT_GUARD_NOT_INJECTED',
            hint: 'In place of `useGlobalGuards(new RateLimitGuard())` write `providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }]`, and `@UseGuards(RateLimitGuard)` on a class or method.',
          },
        );
  }

  /** Global guards that run before our first one refuse calls that no limit has seen. */
  #verifyOrder(warn: Warn): void {
    const ours = this.#guards.findIndex(appliesDefault);
    const before = this.#guards.slice(0, ours < 0 ? undefined : ours).filter(isOtherGuard);
    if (before.length === 0) return;
    const missing = this.#methods.filter(([type, method]) =>
      (ours < 0 ? this.plans.ownPolicies(type, method, UNNAMED) : this.plans.limitsOf(type, method)).some(
        ({ count, judgedBy }: ResolvedPolicy) => count === 'failure' && judgedBy !== 'handler',
      ),
    );
    if (missing.length === 0) return;
    const places = missing.map(([type, method]) => `${type.name}.${method.name}`);
    warn(
      `RATE_LIMIT_GUARD_ORDER: ${before.map((guard) => (classOf(guard) as Type).name).join(', ')} runs before the limits of these routes, which count failures: ${[...new Set(places)].join(', ')}. Calls that it refuses do not count. List \`{ provide: APP_GUARD, useClass: RateLimitGuard }\` before it, with a policy \`default\`, or bind it by \`@UseGuards\`. If it judges nothing there, as on a public login, set \`judgedBy: 'handler'\` in the policy.`,
    );
  }

  #verifyProxy(warn: Warn): void {
    const isLimited = [...this.#guards, ...this.#methods.flatMap(([, method]) => guardsOn(method))].some(
      (guard) => Reflect.hasMetadata(OUR_GUARD, classOf(guard)),
    );
    if (!isLimited || this.options.limit.address !== undefined || !trustsEveryProxy(this.moduleRef)) return;
    warn(
      "RATE_LIMIT_TRUST_PROXY: The app trusts every proxy (`true`), so a client that writes an X-Forwarded-For of its own chooses the address that it is counted by. Say how many proxies there are, or which: `app.set('trust proxy', 1)` on Express, `new FastifyAdapter({ trustProxy: 1 })` on Fastify.",
    );
  }

  #verifyAllowed(warn: Warn): void {
    const { allow } = this.options.limit;
    if (allow.length === 0) return;
    const prefix = globalRouting(this.moduleRef).prefix;
    const paths = this.#methods
      .filter(([, method]) => Reflect.hasMetadata(METHOD, method))
      .flatMap(([type, method]) => this.routes.pathsOf(type, method));
    for (const { path = '/graphql' } of graphqlOptions(this.moduleRef)) paths.push(path);
    for (const pattern of allow) {
      if (paths.some((path) => mayAllow(pattern, path) || mayAllow(`/${prefix}${pattern}`, path))) continue;
      const near = paths.find((path) => path.endsWith(pattern));
      warn(
        `RATE_LIMIT_ALLOW: The pattern '${pattern}' of \`limit.allow\` matches no route, so it has no effect. ${near ? `Did you mean \`allow: ['${near}']\`?` : 'Write the path as clients do, with its version, and `/*` only at its end.'}`,
      );
    }
  }
}

/** Returns whether Express or Fastify takes the address of a client from any proxy. */
function trustsEveryProxy(moduleRef: ModuleRef): boolean {
  const { httpAdapter } = moduleRef.get(HttpAdapterHost, { strict: false });
  const instance = httpAdapter?.getInstance<object>();
  switch (httpAdapter?.getType()) {
    case 'express':
      return (instance as { get(setting: string): unknown }).get('trust proxy') === true;
    case 'fastify': {
      // Fastify shows its options nowhere else.
      const key = Object.getOwnPropertySymbols(instance).find(
        ({ description }) => description === 'fastify.options',
      );
      const options = key && (instance as Record<symbol, { trustProxy?: unknown } | undefined>)[key];
      return options?.trustProxy === true;
    }
    default:
      return false;
  }
}
