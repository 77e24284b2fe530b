import { ExternalContextCreator, type ModulesContainer } from '@nestjs/core';
import { FIELD_RESOLVER, GRAPHQL_OPTIONS, PATTERN, REFERENCE_RESOLVER } from './rate-limit.metadata.js';

/**
 * Who calls a method: Nest, with its guards; another framework, which may ask guards or not; or nobody who would.
 */
export type HandlerKind = 'guarded' | 'foreign' | 'unguarded';

/** Metadata of methods that Nest asks guards for: routes, messages of both kinds, and fields of GraphQL. */
const GUARDED: readonly unknown[] = [
  'path',
  'websockets:message_mapping',
  PATTERN,
  'graphql:resolver_type',
  FIELD_RESOLVER,
  REFERENCE_RESOLVER,
];

/** Metadata that makes no handler of a method, or one that is called past all guards. */
const UNGUARDED: readonly RegExp[] = [
  /^(design|self|optional|syncguard|scope):/,
  // Nest's own on routes: guards, status, headers, version...
  /^__(guards|interceptors|pipes|exceptionFilters|httpCode|headers|redirect|renderTemplate|version|responsePassthrough|sse|sseOptions|routeArguments|customRouteArgs)__$/,
  /^(cache_module:|CACHE_MANAGER|THROTTLER:)/,
  /^swagger\//,
  // @nestjs/schedule, @nestjs/event-emitter
  /^SCHEDULER?_/,
  /^EVENT_LISTENER_METADATA$/,
  // @nestjs/bull and @nestjs/bullmq: processors and listeners of a queue's events
  /^bull(mq)?:/,
];

/** As apps name metadata of their own: `roles`, `isPublic`, `is-public`, and what Reflector.createDecorator makes up. */
const PLAIN = /^[A-Za-z0-9][\w-]*$/;

/** Finds out what a method's metadata makes of it. */
export class HandlerKinds {
  #isHosting: boolean | undefined;

  constructor(private readonly modules: ModulesContainer) {}

  of(method: object): HandlerKind {
    const keys = Reflect.getMetadataKeys(method) as (string | symbol)[];
    if (keys.some((key) => GUARDED.includes(key))) return 'guarded';
    return keys.some((key) => this.#isForeign(key)) ? 'foreign' : 'unguarded';
  }

  #isForeign(key: string | symbol): boolean {
    const name = typeof key === 'symbol' ? (key.description ?? '') : key;
    if (UNGUARDED.some((known) => known.test(name))) return false;
    // Of the app itself, unless something is there that could call a method for any word.
    if (typeof key === 'string' && PLAIN.test(key)) return (this.#isHosting ??= this.#hostsFrameworks());
    return true;
  }

  /** Whether a framework other than GraphQL has Nest make handlers with guards for it, as those of bots do. */
  #hostsFrameworks(): boolean {
    return [...this.modules.values()]
      .filter(({ providers }) => !providers.has(GRAPHQL_OPTIONS))
      .flatMap(({ providers }) => [...providers.values()])
      .some(({ metatype, inject }) => [...(inject ?? []), ...dependenciesOf(metatype)].some(isHandlerMaker));
  }
}

const isHandlerMaker = (token: unknown): boolean =>
  token === ExternalContextCreator || (token as { token?: unknown } | null)?.token === ExternalContextCreator;

/** What a class has injected: by its constructor's types, by `@Inject`, and into properties. */
function dependenciesOf(type: unknown): unknown[] {
  if (typeof type !== 'function') return [];
  const list = (key: string): unknown[] => (Reflect.getMetadata(key, type) ?? []) as unknown[];
  const named = [...list('self:paramtypes'), ...list('self:properties_metadata')] as {
    param?: unknown;
    type?: unknown;
  }[];
  return [...list('design:paramtypes'), ...named.map(({ param, type: token }) => param ?? token)];
}
