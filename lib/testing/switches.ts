import type { Backends } from '../assembly/backends.js';
import { memoryBackends, type MemoryBackendsConfig } from '../assembly/memory-backends.js';
import { BudgetUnavailableError } from '../budget/budget.errors.js';
import type { Clock } from '../core/clock.js';
import type { SyncGuardError } from '../core/errors.js';
import { CounterError } from '../counter/counter.errors.js';
import { LimitError } from '../limit/limit.errors.js';
import { MemoryLimitBackend } from '../limit/memory/limit.memory-backend.js';
import { type LockBackend, withDetail } from '../lock/lock.backend.js';
import { LockError } from '../lock/lock.errors.js';
import type { BackendHandle } from '../lock/lock.handle.js';
import type { AcquireOptions, AcquireResult } from '../lock/lock.types.js';
import { validateAcquire, validateKey } from '../lock/lock.validate.js';
import type { MemoryLockBackend } from '../lock/memory/lock.memory-backend.js';
import { OnceError } from '../once/once.errors.js';
import { SecretError } from '../secret/secret.errors.js';

/** What a test has switched, and the memory backends, each behind a proxy that follows the switches. */
export class Switches {
  readonly contended = new Set<string>();
  allContended = false;
  /** The error of every operation during an outage. Undefined while there is none. */
  outage: SyncGuardError | undefined;
  /** The locks themselves, which no switch changes. */
  readonly locks: MemoryLockBackend;
  readonly backends: Backends;

  constructor(config: MemoryBackendsConfig, clock: Clock) {
    const { lock, fence, limit, budget, secret, counter, once } = memoryBackends(config, clock);
    const backendNow = (): 'redis' | 'memory' => (this.outage ? 'redis' : 'memory');
    this.locks = lock;
    this.backends = {
      lock: this.#switched<LockBackend>(lock, LockError.from, {
        acquire: (options) => this.#acquire(options),
        isLocked: async (options) =>
          this.#isContended(validateKey(options?.key)) || (await lock.isLocked(options)),
      }),
      fence: this.#switched(fence, LockError.from),
      limit: this.#switched(limit, LimitError.from, {
        // During an outage this says 'redis', because the limiter ignores `onError` on a memory backend.
        get backend() {
          return backendNow();
        },
      }),
      limitFallback: new MemoryLimitBackend(clock),
      budget: this.#switched(budget, BudgetUnavailableError.from),
      secret: this.#switched(secret, SecretError.from),
      counter: this.#switched(counter, CounterError.from),
      once: this.#switched(once, OnceError.from),
    };
  }

  #isContended(key: string): boolean {
    return this.allContended || this.contended.has(key);
  }

  async #acquire(options: AcquireOptions): Promise<AcquireResult> {
    const { keys, ttlMs } = validateAcquire(options);
    // The answer is the one that a caller gets when another has just taken the lock for the same `ttlMs`.
    if (keys.some((key) => this.#isContended(key)))
      return withDetail({ ok: false, reason: 'locked' }, { reason: 'locked', remainingMs: ttlMs });
    const result = await this.locks.acquire(options);
    // The handle goes through the switched backend, so that its calls follow the switches too.
    return result.ok ? (result as BackendHandle).through(this.backends.lock) : result;
  }

  /** Returns a port that fails during an outage. Otherwise it calls the port, or the member of `overrides`. */
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
        if (name === 'takeTurn' || name === 'onEnd') return member.bind(owner) as unknown;
        return async (...args: unknown[]): Promise<unknown> => {
          if (this.outage) throw toError(this.outage);
          return Reflect.apply(member, owner, args);
        };
      },
    });
  }
}
