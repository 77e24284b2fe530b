import type { ModuleRef } from '@nestjs/core';

/** What an app has bound for all its handlers, in the order in which Nest holds them. */
export interface GlobalEnhancers {
  /** Instances; of request-scoped ones their classes. */
  readonly guards: readonly unknown[];
  readonly filters: readonly unknown[];
}

interface Scoped {
  readonly metatype: unknown;
}

/** The part of Nest's ApplicationConfig that is read here, the same in Nest 11 and 12. */
interface ApplicationConfig {
  getGlobalGuards(): readonly unknown[];
  getGlobalRequestGuards(): readonly Scoped[];
  getGlobalFilters(): readonly unknown[];
  getGlobalRequestFilters(): readonly Scoped[];
}

/**
 * The one place that looks into Nest for what cannot be injected: guards and filters of `useGlobalGuards`, `APP_GUARD`
 * and their kind. Undefined where a version of Nest keeps them elsewhere.
 */
export function globalEnhancers(moduleRef: ModuleRef): GlobalEnhancers | undefined {
  const { container } = moduleRef as unknown as { container?: { applicationConfig?: unknown } };
  if (typeof container !== 'object' || !('applicationConfig' in container)) return undefined;
  // An app without a server (createApplicationContext) has no configuration, and nothing global in it.
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
