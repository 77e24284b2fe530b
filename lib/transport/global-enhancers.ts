import type { ModuleRef } from '@nestjs/core';

/**
 * The guards and filters that an app has bound for all its handlers, in the order in which Nest keeps them.
 */
export interface GlobalEnhancers {
  /** The instances. For request-scoped guards and filters, the classes. */
  readonly guards: readonly unknown[];
  readonly filters: readonly unknown[];
}

interface Scoped {
  readonly metatype: unknown;
}

/** The part of Nest's ApplicationConfig that is read here. It is the same in Nest 11 and 12. */
interface ApplicationConfig {
  getGlobalGuards(): readonly unknown[];
  getGlobalRequestGuards(): readonly Scoped[];
  getGlobalFilters(): readonly unknown[];
  getGlobalRequestFilters(): readonly Scoped[];
}

/**
 * Returns what an app has bound by `useGlobalGuards`, `APP_GUARD`, `useGlobalFilters` and `APP_FILTER`. Nest
 * cannot inject these, so this is the one place that reads Nest's internals for them. Returns undefined if
 * a version of Nest keeps them elsewhere.
 */
export function globalEnhancers(moduleRef: ModuleRef): GlobalEnhancers | undefined {
  const { container } = moduleRef as unknown as { container?: { applicationConfig?: unknown } };
  if (typeof container !== 'object' || !('applicationConfig' in container)) return undefined;
  // An app without a server (createApplicationContext) has no such configuration, and nothing global.
  if (container.applicationConfig === undefined) return { guards: [], filters: [] };
  const config = container.applicationConfig as Partial<ApplicationConfig>;
  if (!isReadable(config)) return undefined;
  return {
    guards: [...config.getGlobalGuards(), ...config.getGlobalRequestGuards().map(classOf)],
    filters: [...config.getGlobalFilters(), ...config.getGlobalRequestFilters().map(classOf)],
  };
}

const isReadable = (config: Partial<ApplicationConfig>): config is ApplicationConfig =>
  (
    ['getGlobalGuards', 'getGlobalRequestGuards', 'getGlobalFilters', 'getGlobalRequestFilters'] as const
  ).every((name) => typeof config[name] === 'function');

const classOf = ({ metatype }: Scoped): unknown => metatype;
