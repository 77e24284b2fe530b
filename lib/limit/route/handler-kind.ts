import { ExternalContextCreator, type ModulesContainer } from '@nestjs/core';
import {
  FIELD_RESOLVER,
  GRAPHQL_OPTIONS,
  PATTERN,
  REFERENCE_RESOLVER,
  RESOLVER,
} from './rate-limit.metadata.js';

/**
 * - `guarded`: Nest asks guards before it calls the method.
 * - `foreign`: another framework calls the method. It may ask guards or not.
 * - `unguarded`: nothing asks guards for the method.
 */
export type HandlerKind = 'guarded' | 'foreign' | 'unguarded';

/** Metadata of the methods that Nest asks guards for: routes, messages of gateways and microservices, fields of GraphQL. */
const GUARDED: readonly string[] = [
  'path',
  'websockets:message_mapping',
  PATTERN,
  RESOLVER,
  FIELD_RESOLVER,
  REFERENCE_RESOLVER,
];

/** Metadata that does not make a method a handler, or makes it a handler that is called without guards. */
const UNGUARDED: readonly RegExp[] = [
  /^(design|self|optional|syncguard|scope):/,
  // Nest's own metadata of routes: guards, status, headers, version...
  /^__(guards|interceptors|pipes|exceptionFilters|httpCode|headers|redirect|renderTemplate|version|responsePassthrough|sse|sseOptions|routeArguments|customRouteArgs)__$/,
  /^(cache_module:|CACHE_MANAGER|THROTTLER:)/,
  /^swagger\//,
  // @nestjs/schedule, @nestjs/event-emitter
  /^SCHEDULER?_/,
  /^EVENT_LISTENER_METADATA$/,
  // @nestjs/bull and @nestjs/bullmq: processors, and listeners for the events of a queue
  /^bull(mq)?:/,
];

/** The names that apps use for their own metadata (`roles`, `is-public`), and those that Reflector.createDecorator makes. */
const PLAIN = /^[A-Za-z0-9][\w-]*$/;

/** Returns whether Nest calls the method for a request, a message or a field, and asks guards first. */
export const isGuarded = (method: object): boolean => GUARDED.some((key) => Reflect.hasMetadata(key, method));

/** Finds out from the metadata of a method whether guards are asked before it is called. */
export class HandlerKinds {
  #isHosting: boolean | undefined;

  constructor(private readonly modules: ModulesContainer) {}

  of(method: object): HandlerKind {
    if (isGuarded(method)) return 'guarded';
    const keys = Reflect.getMetadataKeys(method) as (string | symbol)[];
    return keys.some((key) => this.#isForeign(key)) ? 'foreign' : 'unguarded';
  }

  #isForeign(key: string | symbol): boolean {
    const name = typeof key === 'symbol' ? (key.description ?? '') : key;
    if (UNGUARDED.some((known) => known.test(name))) return false;
    // A plain name is metadata of the app itself, unless the app has a framework that could have chosen that name.
    if (typeof key === 'string' && PLAIN.test(key)) return (this.#isHosting ??= this.#hostsFrameworks());
    return true;
  }

  /**
   * Returns whether a framework other than GraphQL has Nest's ExternalContextCreator injected, which makes handlers that ask
   * guards. Frameworks of bots do so.
   */
  #hostsFrameworks(): boolean {
    return [...this.modules.values()]
      .filter(({ providers }) => !providers.has(GRAPHQL_OPTIONS))
      .flatMap(({ providers }) => [...providers.values()])
      .some(({ metatype, inject }) => [...(inject ?? []), ...dependenciesOf(metatype)].some(isHandlerMaker));
  }
}

const isHandlerMaker = (token: unknown): boolean =>
  token === ExternalContextCreator || (token as { token?: unknown } | null)?.token === ExternalContextCreator;

/** Returns the tokens injected into a class: by the types of its constructor, by `@Inject`, and into its properties. */
function dependenciesOf(type: unknown): unknown[] {
  if (typeof type !== 'function') return [];
  const list = (key: string): unknown[] => (Reflect.getMetadata(key, type) ?? []) as unknown[];
  const named = [...list('self:paramtypes'), ...list('self:properties_metadata')] as {
    param?: unknown;
    type?: unknown;
  }[];
  return [...list('design:paramtypes'), ...named.map(({ param, type: token }) => param ?? token)];
}
