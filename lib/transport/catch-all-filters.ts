import { SyncGuardExceptionFilter } from './syncguard-exception.filter.js';

/** Nest's metadata key of the classes that a filter catches, in Nest 10, 11 and 12. An empty list stands for all errors. */
const CATCHES = '__filterCatchExceptions__';

/**
 * Returns the names of global filters that catch everything and run instead of ours. Nest asks the last bound filter
 * first, and stops at the first that catches the error. Returns none if our filter is switched off.
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
