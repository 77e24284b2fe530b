import type { Emit } from './telemetry.types.js';

/**
 * Called when a body begins. Returns what tells the listener of its end, in the async context in which it is called. Without a
 * listener there is nothing to tell, and no clock is read.
 */
export function bodyBegins(
  emit: Emit | undefined,
  feature: 'budget' | 'once',
  key: string,
): ((hasThrown: boolean) => void) | undefined {
  if (!emit) return undefined;
  const startMs = performance.now();
  return (hasThrown) => {
    const [result, reason] = hasThrown ? (['fail', 'threw'] as const) : (['ok'] as const);
    emit({ feature, type: 'run', result, reason, key, durationMs: performance.now() - startMs });
  };
}
