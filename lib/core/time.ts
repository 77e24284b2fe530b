import { invalidOption } from './validate.js';

/** Returns seconds as ms. `minutes`, `hours` and `days` do the same: `minutes(5)` reads better than `300_000`. */
export const seconds = (n: number): number => milliseconds('seconds', n, 1_000);
/** Returns minutes as ms. */
export const minutes = (n: number): number => milliseconds('minutes', n, 60_000);
/** Returns hours as ms. */
export const hours = (n: number): number => milliseconds('hours', n, 3_600_000);
/** Returns days of 24 hours as ms. */
export const days = (n: number): number => milliseconds('days', n, 86_400_000);

function milliseconds(unit: string, n: unknown, factor: number): number {
  if (typeof n !== 'number' || !Number.isFinite(n) || n < 0)
    throw invalidOption(`${unit}(n)`, 'a number of at least 0', n);
  return Math.round(n * factor);
}
