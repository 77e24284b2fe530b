import { Logger } from '@nestjs/common';
import { everyMinute } from '../core/every-minute.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import type { LockError, LockErrorCode } from './lock.errors.js';

/** Reports what no single call of the backend shows: a wait in vain, a refused nested call, a lost lock. */
export class LockReports {
  readonly #logger = new Logger('SyncGuard');
  /** An order of locks that leads to deadlocks is found at each of them. */
  readonly #deadlockLine = everyMinute((line, stack?: string) => this.#logger.error(line, stack));

  constructor(private readonly emit: Emit | undefined) {}

  tell(
    reason: 'timeout' | 'aborted' | 'too_many_waiting' | 'deadlock' | 'already_held' | 'lost',
    code: LockErrorCode,
    keys: readonly string[],
    durationMs: number,
    place?: number,
  ): void {
    const facts = { reason, code, keys, durationMs, ...(place === undefined ? {} : { place }) };
    this.emit?.({ feature: 'lock', type: 'lock', result: 'fail', ...facts });
  }

  /** Tells of a call that does not wait at all. */
  refused(error: LockError, keys: readonly string[], waitedMs: number, place: string | undefined): void {
    if (error.code !== 'Deadlock') return this.tell('too_many_waiting', error.code, keys, waitedMs);
    this.tell('deadlock', error.code, keys, waitedMs);
    this.#deadlockLine(
      `LOCK_DEADLOCK: ${place ?? 'A call of lock()'} was refused, because calls wait for each other's locks in a circle. ${error.hint}`,
      error.stack,
    );
  }
}
