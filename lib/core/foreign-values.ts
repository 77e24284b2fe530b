/** Reads a property of a value that may be anything. Its getters may throw, and a Proxy may throw at every access. */
export function read(value: unknown, name: string): unknown {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return undefined;
  return safely(() => (value as Record<string, unknown>)[name]);
}

/** Returns what `look` finds in a foreign value, or undefined where that throws. */
export function safely<T>(look: () => T): T | undefined {
  try {
    return look();
  } catch {
    return undefined;
  }
}

/** Returns whether something is to be waited for. A promise of another library, or of another realm, has a `then` as well. */
export const isPromiseLike = (value: unknown): value is PromiseLike<unknown> =>
  typeof read(value, 'then') === 'function';
