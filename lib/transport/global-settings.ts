import { RequestMethod, type VersioningOptions } from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';

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

const READ: readonly (keyof ApplicationConfig)[] = [
  'getGlobalGuards',
  'getGlobalRequestGuards',
  'getGlobalFilters',
  'getGlobalRequestFilters',
  'getGlobalPrefix',
  'getGlobalPrefixOptions',
  'getVersioning',
];

/**
 * Returns what an app has bound by `useGlobalGuards`, `APP_GUARD`, `useGlobalFilters` and `APP_FILTER`. Returns undefined if a
 * version of Nest keeps them elsewhere.
 */
export function globalEnhancers(moduleRef: ModuleRef): GlobalEnhancers | undefined {
  const config = configOf(moduleRef);
  if (!config) return config === null ? { guards: [], filters: [] } : undefined;
  return {
    guards: [...config.getGlobalGuards(), ...config.getGlobalRequestGuards().map(classOf)],
    filters: [...config.getGlobalFilters(), ...config.getGlobalRequestFilters().map(classOf)],
  };
}

/** Returns what `setGlobalPrefix` and `enableVersioning` have set. A version of Nest that keeps it elsewhere has none. */
export function globalRouting(moduleRef: ModuleRef): GlobalRouting {
  const config = configOf(moduleRef);
  const excluded = config?.getGlobalPrefixOptions()?.exclude ?? [];
  return {
    prefix: config?.getGlobalPrefix() ?? '',
    isExcluded: (path, method) =>
      excluded.some(
        ({ requestMethod, pathRegex }) =>
          (requestMethod === -1 || requestMethod === RequestMethod.ALL || requestMethod === method) &&
          pathRegex.test(path),
      ),
    versioning: config?.getVersioning(),
  };
}

/**
 * Returns Nest's configuration of an app, which Nest cannot inject. This is the one place that reads Nest's internals for
 * it. Returns null for an app without a server (createApplicationContext), which has none, and undefined if a version of
 * Nest keeps it elsewhere.
 */
function configOf(moduleRef: ModuleRef): ApplicationConfig | null | undefined {
  const { container } = moduleRef as unknown as { container?: { applicationConfig?: unknown } };
  if (typeof container !== 'object' || !('applicationConfig' in container)) return undefined;
  if (container.applicationConfig === undefined) return null;
  const config = container.applicationConfig as ApplicationConfig;
  return READ.every((name) => typeof config[name] === 'function') ? config : undefined;
}

const classOf = (scoped: unknown): unknown => (scoped as { metatype: unknown }).metatype;
