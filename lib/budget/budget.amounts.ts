import { attachNonce, nonceOf } from './budget.id.js';
import type { Amount } from './budget.types.js';

/**
 * Converts the amounts of a result for the caller. A caller that passed a bigint receives bigints. Any other
 * caller receives numbers, except that an amount above `Number.MAX_SAFE_INTEGER` stays a bigint. The function
 * walks the result, so that no operation has to list its amounts. Balances are converted when they are read.
 */
export function presentAmounts<Result>(result: Result, asBigint: boolean): Result {
  if (asBigint || typeof result !== 'object' || result === null || Array.isArray(result))
    return (asBigint ? result : toNumbers(result)) as Result;
  const shown: Record<string, unknown> = {};
  for (const key in result) {
    if (key === 'balances') defineBalances(shown, () => toNumbers(result[key]));
    else shown[key] = toNumbers(result[key]);
  }
  return attachNonce(shown, nonceOf(result)) as Result;
}

function toNumbers(value: unknown): unknown {
  if (typeof value === 'bigint') return toNumber(value);
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.length === 0 ? value : value.map(toNumbers);
  const shown: Record<string, unknown> = {};
  for (const key in value) shown[key] = toNumbers((value as Record<string, unknown>)[key]);
  return shown;
}

const toNumber = (value: bigint): Amount => (value <= Number.MAX_SAFE_INTEGER ? Number(value) : value);

const COMPUTE = Symbol.for('syncguard:budget-balances');

// All results share one getter. With one getter for each result, V8 would give each result its own hidden class, and
// access would be slow.
const BALANCES: PropertyDescriptor & ThisType<{ [COMPUTE](): unknown }> = {
  enumerable: true,
  configurable: true,
  get() {
    const value = this[COMPUTE]();
    Object.defineProperty(this, 'balances', { value, enumerable: true, configurable: true, writable: true });
    return value;
  },
};

/** Defines the `balances` of a result. They are computed when they are first read. */
export function defineBalances(result: object, compute: () => unknown): void {
  Object.defineProperty(result, COMPUTE, { value: compute });
  Object.defineProperty(result, 'balances', BALANCES);
}
