import { RequestMethod, type VersioningOptions } from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { safely } from '../core/foreign-values.js';

/** The guards and filters that an app has bound for all its handlers, in the order in which Nest keeps them. */
export interface GlobalEnhancers {
  /** The instances. For request-scoped guards and filters, the classes. */
  readonly guards: readonly unknown[];
  readonly filters: readonly unknown[];
}

/** What an app adds to the paths of its routes. */
export interface GlobalRouting {
  /** The prefix of `setGlobalPrefix`. */
  readonly prefix: string;
  /** Returns whether a path, without prefix and version, is excluded from the prefix. */
  isExcluded(path: string, method: RequestMethod): boolean;
  readonly versioning: VersioningOptions | undefined;
}

/** What is read here of Nest's ApplicationConfig. It is the same in Nest 10, 11 and 12. */
interface ApplicationConfig {
  getGlobalGuards(): readonly unknown[];
  getGlobalRequestGuards(): readonly unknown[];
  getGlobalFilters(): readonly unknown[];
  getGlobalRequestFilters(): readonly unknown[];
  getGlobalPrefix(): string;
  getGlobalPrefixOptions(): { readonly exclude?: readonly Excluded[] } | undefined;
  getVersioning(): VersioningOptions | undefined;
}

/** A route without the prefix. The method -1 stands for all. */
interface Excluded {
  readonly requestMethod: RequestMethod | -1;
  readonly pathRegex: RegExp;
}

/**
 * Returns what an app has bound by `useGlobalGuards`, `APP_GUARD`, `useGlobalFilters` and `APP_FILTER`. Returns undefined if a
 * version of Nest keeps them elsewhere.
 */
export const globalEnhancers = (moduleRef: ModuleRef): GlobalEnhancers | undefined =>
  inConfig<GlobalEnhancers>(moduleRef, { guards: [], filters: [] }, (config) => ({
    guards: [...config.getGlobalGuards(), ...config.getGlobalRequestGuards().map(classOf)],
    filters: [...config.getGlobalFilters(), ...config.getGlobalRequestFilters().map(classOf)],
  }));

const NO_ROUTING: GlobalRouting = { prefix: '', isExcluded: () => false, versioning: undefined };

/** Returns what `setGlobalPrefix` and `enableVersioning` have set. A version of Nest that keeps it elsewhere has none. */
export function globalRouting(moduleRef: ModuleRef): GlobalRouting {
  const routing = inConfig(moduleRef, NO_ROUTING, (config) => {
    const excluded = config.getGlobalPrefixOptions()?.exclude ?? [];
    const isExcluded: GlobalRouting['isExcluded'] = (path, method) =>
      excluded.some(
        ({ requestMethod, pathRegex }) =>
          (requestMethod === -1 || requestMethod === RequestMethod.ALL || requestMethod === method) &&
          pathRegex.test(path),
      );
    return { prefix: config.getGlobalPrefix(), isExcluded, versioning: config.getVersioning() };
  });
  return routing ?? NO_ROUTING;
}

/**
 * Looks into Nest's configuration of an app, which Nest cannot inject. This is the one place that reads Nest's internals for
 * it. Returns `without` for an app without a server (createApplicationContext), which has none, and undefined if a version of
 * Nest keeps it elsewhere.
 */
function inConfig<Found>(
  moduleRef: ModuleRef,
  without: Found,
  look: (config: ApplicationConfig) => Found,
): Found | undefined {
  const { container } = moduleRef as unknown as { container?: { applicationConfig?: unknown } };
  if (typeof container !== 'object' || !('applicationConfig' in container)) return undefined;
  const config = container.applicationConfig as ApplicationConfig | undefined;
  return config ? safely(() => look(config)) : without;
}

const classOf = (scoped: unknown): unknown => (scoped as { metatype: unknown }).metatype;
