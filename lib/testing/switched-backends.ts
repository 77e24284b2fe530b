import { type Backends, memoryBackends, type MemoryBackendsConfig } from '../assembly/backends.js';
import { BudgetUnavailableError } from '../budget/budget.errors.js';
import type { Clock } from '../core/clock.js';
import { CounterError } from '../counter/counter.errors.js';
import { LimitError } from '../limit/limit.errors.js';
import { MemoryLimitBackend } from '../limit/memory/limit.memory-backend.js';
import type { BackendHandle } from '../lock/lock.handle.js';
import { type LockBackend, withDetail } from '../lock/lock.backend.js';
import { LockError } from '../lock/lock.errors.js';
import type { MemoryLockBackend } from '../lock/memory/lock.memory-backend.js';
import type { AcquireOptions, AcquireResult } from '../lock/lock.types.js';
import { validateAcquire, validateKey } from '../lock/lock.validate.js';
import { SecretError } from '../secret/secret.errors.js';
import { SyncGuardError } from '../core/errors.js';

/** The memory backends, each behind a proxy that follows the switches of a test. */
export class SwitchedBackends implements Backends {
  readonly lock: Backends['lock'];
  readonly fence: Backends['fence'];
  readonly limit: Backends['limit'];
  readonly limitFallback: Backends['limit'];
  readonly budget: Backends['budget'];
  readonly secret: Backends['secret'];
  readonly counter: Backends['counter'];

  readonly #locks: MemoryLockBackend;
  readonly #contended = new Set<string>();
  #allContended = false;
  #outage: SyncGuardError | undefined;

  constructor(config: MemoryBackendsConfig, clock: Clock) {
    const { lock, fence, limit, budget, secret, counter } = memoryBackends(config, clock);
    const backendNow = (): 'redis' | 'memory' => (this.#outage ? 'redis' : 'memory');
    this.#locks = lock;
    this.lock = this.#switched<LockBackend>(lock, LockError.from, {
      acquire: (options) => this.#acquire(options),
      isLocked: async (options) =>
        this.#isContended(validateKey(options?.key)) || (await lock.isLocked(options)),
    });
    this.fence = this.#switched(fence, LockError.from);
    this.limit = this.#switched(limit, LimitError.from, {
      // During an outage this says 'redis', because the limiter ignores `onError` on a memory backend.
      get backend() {
        return backendNow();
      },
    });
    this.limitFallback = new MemoryLimitBackend(clock);
    this.budget = this.#switched(budget, BudgetUnavailableError.from);
    this.secret = this.#switched(secret, SecretError.from);
    this.counter = this.#switched(counter, CounterError.from);
  }

  /** The error of every operation during an outage. Undefined while there is none. */
  get outage(): SyncGuardError | undefined {
    return this.#outage;
  }

  contend(key: string): void {
    this.#contended.add(validateKey(key));
  }

  contendAll(): void {
    this.#allContended = true;
  }

  /** Takes the lock from its holder. Returns its lock id, or undefined if nobody held it. */
  async lose(key: string): Promise<string | undefined> {
    const lock = await this.#locks.getByKeyRaw(key);
    return lock && (await this.#locks.release({ lockId: lock.lockId })).ok ? lock.lockId : undefined;
  }

  /** Takes all locks from their holders. Returns their lock ids. */
  async loseAll(): Promise<readonly string[]> {
    const lost = this.#locks.heldIds();
    await Promise.all(lost.map((lockId) => this.#locks.release({ lockId })));
    return lost;
  }

  makeUnreachable(): void {
    this.#outage = new SyncGuardError({
      code: 'ServiceUnavailable',
      message: 'Redis cannot be reached.',
      hint: 'The test called makeUnreachable(). Call restore() to end it.',
    });
  }

  restore(): void {
    this.#contended.clear();
    this.#allContended = false;
    this.#outage = undefined;
  }

  #isContended(key: string): boolean {
    return this.#allContended || this.#contended.has(key);
  }

  async #acquire(options: AcquireOptions): Promise<AcquireResult> {
    const { keys, ttlMs } = validateAcquire(options);
    // The answer is the one that a caller gets when another has just taken the lock for the same `ttlMs`.
    if (keys.some((key) => this.#isContended(key)))
      return withDetail({ ok: false, reason: 'locked' }, { reason: 'locked', remainingMs: ttlMs });
    const result = await this.#locks.acquire(options);
    // The handle goes through the switched backend, so that its calls follow the switches too.
    return result.ok ? (result as BackendHandle).through(this.lock) : result;
  }

  /**
   * Returns a port that fails during an outage. Otherwise it calls the port, or the member of `overrides`.
   */
  #switched<Port extends object>(
    port: Port,
    toError: (fault: SyncGuardError) => Error,
    overrides: Partial<Port> = {},
  ): Port {
    return new Proxy(port, {
      get: (_, name) => {
        const owner = name in overrides ? overrides : port;
        const member: unknown = Reflect.get(owner, name);
        if (typeof member !== 'function') return member;
        // This call does not ask the backend. The attempts that get the turn do.
        if (name === 'takeTurn') return member.bind(owner) as unknown;
        return async (...args: unknown[]): Promise<unknown> => {
          if (this.#outage) throw toError(this.#outage);
          return Reflect.apply(member, owner, args);
        };
      },
    });
  }
}
