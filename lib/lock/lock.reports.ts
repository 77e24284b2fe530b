import { Logger } from '@nestjs/common';
import { everyMinute } from '../core/every-minute.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import type { LockError, LockErrorCode } from './lock.errors.js';
import type { Wait, WantedLock } from './waiting.js';

/** The words for what has ended a wait. Other codes are faults of Redis, and say enough. */
const REASONS: { readonly [Code in LockErrorCode]?: string } = {
  Aborted: 'aborted',
  LockLost: 'aborted',
  TooManyWaiting: 'too_many_waiting',
  Deadlock: 'deadlock',
};

/** Reports what no single call of the backend shows: how long a call has waited, a refused nested call, a lost lock. */
export class LockReports {
  readonly #logger = new Logger('SyncGuard');
  /** An order of locks that leads to deadlocks is found at each of them. */
  readonly #deadlockLine = everyMinute((line, stack?: string) => this.#logger.error(line, stack));

  constructor(private readonly emit: Emit | undefined) {}

  failed(error: LockError, { keys, place }: WantedLock, wait: Wait): void {
    this.tell(keys, wait, error.code, REASONS[error.code]);
    if (error.code !== 'Deadlock') return;
    this.#deadlockLine(
      `LOCK_DEADLOCK: ${place ?? 'A call of lock()'} was refused, because calls wait for each other's locks in a circle. ${error.hint}`,
      error.stack,
    );
  }

  /** Without a code the lock was granted. */
  tell(
    keys: readonly string[],
    { waitedMs: durationMs, place }: Wait,
    code?: LockErrorCode,
    reason?: string,
  ): void {
    if (!this.emit) return;
    const result = code === undefined ? 'ok' : 'fail';
    this.emit({ feature: 'lock', type: 'lock', result, code, reason, keys, durationMs, place });
  }
}
