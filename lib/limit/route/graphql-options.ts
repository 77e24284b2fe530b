import type { ModuleRef } from '@nestjs/core';
import { GRAPHQL_OPTIONS } from '../../transport/nest-metadata.js';

/** What is read here of the options of a GraphQLModule. */
interface GraphQLOptions {
  readonly path?: string;
  readonly fieldResolverEnhancers?: readonly string[];
}

/** Returns the options of all GraphQLModules. */
export function graphqlOptions(moduleRef: ModuleRef): readonly GraphQLOptions[] {
  try {
    return moduleRef.get(GRAPHQL_OPTIONS, { strict: false, each: true });
  } catch {
    return []; // There is none.
  }
}
