import { SyncGuardExceptionFilter } from './syncguard-exception.filter.js';

/** Nest's metadata of an exception filter, the same in Nest 11 and 12: which errors it catches; none: all. */
const CATCHES = '__filterCatchExceptions__';

/**
 * The names of global filters that catch everything and are asked before ours: Nest asks the one that was bound last
 * first, and no other after it. None where ours is switched off.
 *
 * @param filters - instances, or classes of request-scoped ones, in the order in which they were bound
 */
export function catchAllsBeforeOurs(filters: readonly unknown[]): string[] {
  const types = filters.map((filter) =>
    typeof filter === 'function' ? filter : (filter as object | null)?.constructor,
  );
  const ours = types.findLastIndex(
    (type) => type === SyncGuardExceptionFilter || type?.prototype instanceof SyncGuardExceptionFilter,
  );
  return ours < 0
    ? []
    : types.slice(ours + 1).flatMap((type) => (type && catchesAll(type) ? [type.name] : []));
}

const catchesAll = (type: object): boolean => {
  const caught = (Reflect.getMetadata(CATCHES, type) ?? []) as readonly unknown[];
  return caught.length === 0 || caught.includes(Error) || caught.includes(Object);
};
