import type { ModuleRef } from '@nestjs/core';

/** The guards and filters that an app has bound for all its handlers, in the order in which Nest keeps them. */
export interface GlobalEnhancers {
  /** The instances. For request-scoped guards and filters, the classes. */
  readonly guards: readonly unknown[];
  readonly filters: readonly unknown[];
}

/** What is read here of Nest's ApplicationConfig. It is the same in Nest 10, 11 and 12. */
const READ = [
  'getGlobalGuards',
  'getGlobalRequestGuards',
  'getGlobalFilters',
  'getGlobalRequestFilters',
] as const;

type ApplicationConfig = Record<(typeof READ)[number], () => readonly unknown[]>;

/**
 * Returns what an app has bound by `useGlobalGuards`, `APP_GUARD`, `useGlobalFilters` and `APP_FILTER`. Nest cannot
 * inject these, so this is the one place that reads Nest's internals for them. Returns undefined if a version of Nest
 * keeps them elsewhere.
 */
export function globalEnhancers(moduleRef: ModuleRef): GlobalEnhancers | undefined {
  const { container } = moduleRef as unknown as { container?: { applicationConfig?: unknown } };
  if (typeof container !== 'object' || !('applicationConfig' in container)) return undefined;
  // An app without a server (createApplicationContext) has no such configuration, and nothing global.
  if (container.applicationConfig === undefined) return { guards: [], filters: [] };
  const config = container.applicationConfig as ApplicationConfig;
  if (!READ.every((name) => typeof config[name] === 'function')) return undefined;
  return {
    guards: [...config.getGlobalGuards(), ...config.getGlobalRequestGuards().map(classOf)],
    filters: [...config.getGlobalFilters(), ...config.getGlobalRequestFilters().map(classOf)],
  };
}

const classOf = (scoped: unknown): unknown => (scoped as { metatype: unknown }).metatype;
