import { RequestMethod, type VersioningOptions, VersioningType } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { globalRouting } from './global-settings.js';
import { HOST, METHOD, MODULE_PATH, PATH, VERSION } from './nest-metadata.js';

/** What a request of Express or Fastify tells of its route. */
export interface RoutedRequest {
  readonly method: string;
  /** The matched route: `route` in Express, `routeOptions` in Fastify. */
  readonly route?: { readonly path?: string | RegExp };
  readonly routeOptions?: { readonly url?: string };
}

type Version = Exclude<VersioningOptions['defaultVersion'], readonly unknown[]>;

/** Names the handlers of HTTP, and finds the paths that Nest serves them at. */
export class HttpRoutes {
  readonly #names = new WeakMap<object, WeakMap<object, string>>();
  readonly #modules: ModulesContainer;
  readonly #moduleRef: ModuleRef;

  constructor(modules: ModulesContainer, moduleRef: ModuleRef) {
    this.#modules = modules;
    this.#moduleRef = moduleRef;
  }

  /**
   * Returns the name of a handler: its HTTP method, host and path, with the versions that it declares. A client may choose
   * among the paths and versions of a handler, and between GET and HEAD. So the first path, in the order of declaration,
   * stands for all.
   */
  nameOf(type: object, handler: object, request: RoutedRequest): string {
    let ofClass = this.#names.get(type);
    if (!ofClass) this.#names.set(type, (ofClass = new WeakMap<object, string>()));
    let name = ofClass.get(handler);
    if (name === undefined) ofClass.set(handler, (name = this.#name(type, handler, request)));
    return name;
  }

  #name(type: object, handler: object, request: RoutedRequest): string {
    const declared = RequestMethod[Reflect.getMetadata(METHOD, handler) as RequestMethod] ?? request.method;
    const method = declared === 'ALL' ? '*' : declared === 'HEAD' ? 'GET' : declared;
    // The template of the host, and not the `Host` that a client sends.
    const host = list<string | RegExp>(HOST, type).map(String).join(',');
    const [first, ...others] = this.pathsOf(type, handler);
    const path = others.length > 0 ? first : (request.routeOptions?.url ?? request.route?.path ?? '*');
    const versions = (own<Version>(VERSION, handler) ?? own<Version>(VERSION, type) ?? []).map(String);
    return `${method} ${host}${String(path)}${versions.length > 0 ? `@${versions.join(',')}` : ''}`;
  }

  /** Returns the templates of all paths at which Nest serves a handler, the first declared one first. */
  pathsOf(type: object, handler: object): string[] {
    const { prefix, isExcluded, versioning } = globalRouting(this.#moduleRef);
    const method = Reflect.getMetadata(METHOD, handler) as RequestMethod;
    const paths = this.#modulePaths(type).flatMap((modulePath) =>
      list<string>(PATH, type).flatMap((ofClass) =>
        uriVersions(type, handler, versioning).flatMap((version) =>
          list<string>(PATH, handler).map((ofMethod) => {
            const path = joined(modulePath, ofClass, ofMethod);
            return isExcluded(path, method) ? joined(version, path) : joined(prefix, version, path);
          }),
        ),
      ),
    );
    return [...new Set(paths)];
  }

  /** Returns the paths that RouterModule has given to the modules of a class. */
  #modulePaths(type: object): string[] {
    const { applicationId } = this.#modules;
    return [...this.#modules.values()]
      .filter(({ controllers }) => [...controllers.values()].some(({ metatype }) => metatype === type))
      .map(({ metatype }) =>
        String(
          Reflect.getMetadata(MODULE_PATH + applicationId, metatype) ??
            Reflect.getMetadata(MODULE_PATH, metatype) ??
            '',
        ),
      );
  }
}

/** Returns the versions in the paths of a handler, as Nest writes them there. */
function uriVersions(type: object, handler: object, versioning: VersioningOptions | undefined): string[] {
  if (versioning?.type !== VersioningType.URI) return [''];
  const { prefix = 'v', defaultVersion } = versioning;
  const versions = own<Version>(VERSION, handler) ?? own<Version>(VERSION, type) ?? [defaultVersion].flat();
  // The symbol VERSION_NEUTRAL stands for paths without a version.
  return versions.map((version) => (typeof version === 'string' ? `${prefix || ''}${version}` : ''));
}

const own = <T>(key: string, place: object): T[] | undefined => {
  const value = Reflect.getMetadata(key, place) as T | T[] | undefined;
  return value === undefined ? undefined : ([value].flat() as T[]);
};

const list = <T>(key: string, place: object): T[] => own<T>(key, place) ?? [];

const joined = (...parts: string[]): string =>
  `/${parts
    .map((part) => part.replace(/^\/+|\/+$/g, ''))
    .filter(Boolean)
    .join('/')}`;
