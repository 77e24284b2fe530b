import { describe, type CallOptions, callOptions, knownOptions, userKey } from '../core/validate.js';
import type { FenceBackend, FencedValue, FencedWrite, FenceResult } from './fence.backend.js';
import { invalidCall, LockError } from './lock.errors.js';
import { checked, validateFence, validateLockId } from './lock.validate.js';

const WRITE = ['resource', 'fence', 'lockId', 'set'] as const;

/**
 * Protects a resource from a holder that has lost its lock: a write is applied only if the resource has seen no higher
 * fence. A holder that was paused until its lock had expired does not know that, and goes on to write. Its lock cannot
 * stop it, but the resource can.
 *
 * With `set` the comparison and the write are one atomic step on Redis. Without `set` the guard only compares and notes
 * the fence. You write afterwards, and a process that is paused in between still writes late. In a SQL database compare
 * within the `UPDATE` (docs/guides/fencing.md).
 *
 * The last fence of each resource is kept for ever, in about 150 bytes. So name a resource after a thing, such as
 * `order:7`, and not after an event.
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

  /** @internal The module or `createFenceGuard()` creates it. */
  constructor(backend: FenceBackend, { keyPrefix }: { readonly keyPrefix: string }) {
    this.#backend = backend;
    this.#ownNames = [`${keyPrefix}:`, `${keyPrefix}/`];
  }

  /**
   * Notes the fence and writes, unless a later holder has called this for the resource. The same holder may write many
   * times. A call that failed with `NetworkTimeout` may have written. Repeating it is safe.
   *
   * @returns `{ ok: true }`, or `{ ok: false, lastFence }` if a later holder was first
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
   * Reads a key that `apply()` has set. It also works where the app runs in memory.
   *
   * @returns its value, or null if there is none
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
    const { resource, fence, lockId, set, signal } = callOptions(write, WRITE);
    return {
      resource: userKey(resource, 'resource'),
      fence: validateFence(fence, 'Pass the fence of the lock, unchanged: lock.fence.'),
      lockId: validateLockId(lockId),
      set: set === undefined ? undefined : this.#validateSet(set),
      signal,
    };
  }

  #validateSet(set: FencedValue): FencedValue {
    const { key, value } = knownOptions('set', set, ['key', 'value']);
    if (typeof value !== 'string')
      throw invalidCall(`set.value must be a string, got ${describe(value)}.`, 'Write objects as JSON.');
    return { key: this.#validateKey('set.key', key), value };
  }

  /** Returns the key unchanged, because other programs read it under this name. */
  #validateKey(argument: string, key: unknown): string {
    userKey(key, argument);
    const name = key as string;
    if (this.#ownNames.some((own) => name.startsWith(own)))
      throw invalidCall(
        `${argument} must not begin with ${this.#ownNames.join(' or ')}: such keys belong to SyncGuard.`,
        'Use a key of your own.',
      );
    return name;
  }
}
