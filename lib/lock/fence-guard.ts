import { describe, userKey } from '../core/keys.js';
import { SyncGuardError } from '../core/errors.js';
import { type CallOptions, callOptions, knownOptions } from '../core/validate.js';
import type { FenceBackend } from './fence.backend.js';
import type { FencedValue, FencedWrite, FenceResult } from './fence.types.js';
import { LockError } from './lock.errors.js';
import { checked, validateLockId } from './lock.validate.js';

const FENCE = /^\d{15}$/;

/**
 * Stands at a resource, and refuses the holder of a lock that has passed on: a write is applied only if no higher fence has
 * been seen there. A holder that was paused past the end of its lock does not know that. Its lock cannot stop it, but the
 * resource can.
 *
 * With `set` the comparison and the write are one atomic step on Redis. Without it the fence is noted and compared, and the
 * write that follows is yours: a process that is paused between the two still writes late. A SQL database compares in its own
 * `UPDATE` (docs/guides/fencing.md).
 *
 * The last fence of a resource is kept for good, about 150 bytes each. So name things that you have, not events.
 *
 * @example
 * const written = await fences.apply({
 *   resource: 'order:7', fence: lock.fence, lockId: lock.lockId,
 *   set: { key: 'order:7', value: JSON.stringify(order) },
 * });
 * if (!written.ok) throw new Error('Somebody else works on this order now.');
 */
export class FenceGuard {
  readonly #backend: FenceBackend;
  readonly #ownNames: readonly string[];

  /** @internal The module makes it, or `createFenceGuard()`. */
  constructor(backend: FenceBackend, { keyPrefix }: { readonly keyPrefix: string }) {
    this.#backend = backend;
    this.#ownNames = [`${keyPrefix}:`, `${keyPrefix}/`];
  }

  /**
   * Notes the fence, and writes, if no later holder has been here. The same holder may write many times. A call that failed
   * with `NetworkTimeout` may have written; it is safe to repeat.
   *
   * @returns `{ ok: true }`, or `{ ok: false, lastFence }` where a later holder was here
   * @throws LockError `InvalidArgument` for a wrong call or a key that holds no String, `Aborted` for an aborted `signal`,
   *   `ServiceUnavailable` or `NetworkTimeout` if Redis does not answer, `AuthFailed` if it refuses the client
   */
  async apply(write: FencedWrite): Promise<FenceResult> {
    const valid = checked(() => this.#validate(write));
    return this.#backend.apply(valid).catch((error: unknown) => {
      throw LockError.from(error, { keys: [valid.resource] });
    });
  }

  /**
   * Reads a key that `apply()` has set, also where the app runs in memory.
   *
   * @returns its value, or null where there is none
   * @throws LockError as `apply()`
   */
  async get(key: string, options: CallOptions = {}): Promise<string | null> {
    const { signal } = checked(() => callOptions(options, []));
    const valid = checked(() => this.#validateKey('key', key));
    return this.#backend.get(valid, { signal }).catch((error: unknown) => {
      throw LockError.from(error, { keys: [valid] });
    });
  }

  #validate(write: FencedWrite): FencedWrite {
    const { resource, fence, lockId, set, signal } = callOptions(write, [
      'resource',
      'fence',
      'lockId',
      'set',
    ]);
    return {
      resource: named('resource', () => userKey(resource)),
      fence: validateFence(fence),
      lockId: validateLockId(lockId),
      set: set === undefined ? undefined : this.#validateSet(set),
      signal,
    };
  }

  #validateSet(set: FencedValue): FencedValue {
    const { key, value } = knownOptions('set', set, ['key', 'value']);
    if (typeof value !== 'string')
      throw invalid(
        `Invalid set.value: it must be a string, got ${describe(value)}.`,
        'Write objects as JSON.',
      );
    return { key: this.#validateKey('set.key', key), value };
  }

  /** The key as it is: other programs read it under this very name. */
  #validateKey(argument: string, key: unknown): string {
    named(argument, () => userKey(key));
    const name = key as string;
    if (this.#ownNames.some((own) => name.startsWith(own)))
      throw invalid(
        `Invalid ${argument}: names that begin with ${this.#ownNames.join(' or ')} belong to SyncGuard.`,
        'Write to a key of your own.',
      );
    return name;
  }
}

function validateFence(fence: unknown): string {
  if (typeof fence === 'string' && FENCE.test(fence)) return fence;
  throw invalid(
    `Invalid fence: it must be 15 digits, got ${describe(fence)}.`,
    'Pass the fence of the lock, unchanged: lock.fence.',
  );
}

const invalid = (message: string, hint?: string): SyncGuardError =>
  new SyncGuardError({ code: 'InvalidArgument', message, hint });

/** Runs a check of a key. Its error names the argument. */
function named<T>(argument: string, check: () => T): T {
  try {
    return check();
  } catch (error) {
    const { summary, hint } = error as SyncGuardError;
    throw invalid(summary.replace('Invalid key: the key', `Invalid ${argument}: it`), hint);
  }
}
