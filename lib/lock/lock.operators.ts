import { hostname } from 'node:os';
import { Logger } from '@nestjs/common';
import { type CallOptions, refuseAborted } from '../core/validate.js';
import { tellForced } from '../telemetry/by-hand.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import type { LockBackend } from './lock.backend.js';
import { invalidCall, LockError } from './lock.errors.js';
import type { OpenHandles } from './lock.handle.js';
import type { LockRuns } from './lock.runs.js';
import type { ForceReleaseOptions, ForceReleaseResult, LockHolder } from './lock.types.js';
import { attributed, validateCall, validateKey } from './lock.validate.js';

/** A lock that an operator has seen. */
interface Seen {
  readonly key: string;
  readonly fence: string;
}

/** What a process asks or tells the others. */
interface Question {
  readonly held?: string;
  readonly revoked?: Seen;
}

export const cannot = (): never => {
  throw invalidCall('This backend of locks cannot list or release them by hand.');
};

/** What an operator asks and does. What these methods do is said at the service's methods of the same names. */
export class LockOperators {
  readonly #logger = new Logger('SyncGuard');

  constructor(
    private readonly backend: LockBackend,
    private readonly runs: LockRuns,
    private readonly handles: OpenHandles,
    private readonly emit: Emit | undefined,
  ) {
    backend.peers?.answerBy((question) => this.#answer(question as Question));
  }

  async forceRelease(key: string, options: ForceReleaseOptions): Promise<ForceReleaseResult> {
    const result = await (this.backend.forceRelease?.(key, options) ?? cannot());
    if (!result.released) return result;
    const { fence, by, reason } = options;
    tellForced(
      { feature: 'lock', operation: 'release', key, by, reason },
      (line) => this.#logger.warn(line),
      this.emit,
    );
    const revoked: Seen = { key: validateKey(key), fence };
    this.#revoke(revoked);
    // The lock is released, also where nobody can be told.
    this.backend.peers?.ask({ revoked }).catch(() => {});
    return result;
  }

  async holder(key: string, options: CallOptions): Promise<LockHolder[]> {
    const { peers, capabilities } = this.backend;
    const name = validateKey(key);
    refuseAborted(validateCall(options).signal, LockError);
    if (!peers && capabilities.backend !== 'memory')
      throw invalidCall('holder() asks the other processes.', 'Set the option `operations: true`.');
    const answers = peers ? await attributed(peers.ask({ held: name }, options)) : [];
    return [...this.#heldHere(name), ...(answers.flat() as LockHolder[])];
  }

  #heldHere(key: string): LockHolder[] {
    const heldBy = (keys: readonly string[], heldMs: number, method?: string): LockHolder[] =>
      keys.includes(key)
        ? [
            {
              ...{ host: hostname(), pid: process.pid, sinceMs: Math.floor(Date.now() - heldMs) },
              ...(method === undefined ? {} : { method: method.slice(method.lastIndexOf(' ') + 1) }),
            },
          ]
        : [];
    const leases = this.runs.watchdog.leases().filter(({ lost }) => !lost);
    const nowMs = performance.now();
    return [
      ...leases.flatMap(({ keys, heldMs, method }) => heldBy(keys, heldMs, method)),
      ...this.handles.items.flatMap(({ held }) => heldBy(held.keys, nowMs - held.sinceMs)),
    ];
  }

  /** Answers what another process asks. */
  #answer({ held, revoked }: Question): LockHolder[] | undefined {
    if (revoked) this.#revoke(revoked);
    const holders = held === undefined ? [] : this.#heldHere(held);
    return holders.length > 0 ? holders : undefined;
  }

  #revoke({ key, fence }: Seen): void {
    const lease = this.runs.watchdog
      .leases()
      .find(({ keys, handle }) => handle.fence === fence && keys.includes(key));
    lease?.lose('revoked', 'it was released by hand');
  }
}
