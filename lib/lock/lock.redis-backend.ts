import { isLive, type Moment, momentNow, monotonicMs, msUntil, TIME_TOLERANCE_MS } from '../clock.js';
import { hashKey } from '../keys.js';
import type { RunOptions, ScriptRunner } from '../script/script-runner.js';
import { LockHandle } from './acquired-lock.js';
import { type LockBackend, withDetail } from './lock.backend.js';
import { LockError } from './lock.errors.js';
import type { LockLayout } from './lock.layout.js';
import {
  acquireScript,
  type AcquireReply,
  CLEANUP_AFTER_MS,
  cleanupScript,
  extendByIdScript,
  type ExtendReply,
  extendScript,
  readByIdScript,
  readIndexScript,
  type ReadReply,
  readScript,
  releaseByIdScript,
  releaseFoundScript,
  type ReleaseCode,
  releaseHeldScript,
  releaseScript,
} from './lock.scripts.js';
import type {
  AcquireOptions,
  AcquireResult,
  ExtendOptions,
  ExtendResult,
  IsLockedOptions,
  LockInfo,
  LookupOptions,
  RawLockInfo,
  RedisCapabilities,
  ReleaseOptions,
  ReleaseResult,
} from './lock.types.js';
import {
  createLockId,
  FENCE_THRESHOLDS,
  type LockRecord,
  toLockInfo,
  toRawLockInfo,
  validateAcquire,
  validateExtend,
  validateIsLocked,
  validateKey,
  validateLockId,
  validateLookup,
  validateRelease,
} from './lock.values.js';
import { type Attempt, BackgroundRetries } from '../background-retries.js';

/** At shutdown, for what Redis has been asked and has not answered. */
const LAST_ANSWERS_MS = 500;

export interface RedisLockBackendConfig {
  cleanupInIsLocked: boolean;
  /** Told, once, that a fence counter nears its end. */
  warn(message: string): void;
}

/** Locks on Redis: each operation one atomic script (seed 004). */
export class RedisLockBackend implements LockBackend<RedisCapabilities> {
  readonly capabilities: RedisCapabilities = {
    backend: 'redis',
    supportsFencing: true,
    timeAuthority: 'server',
  };
  readonly #undos = new BackgroundRetries();
  #warned = false;

  constructor(
    private readonly runner: ScriptRunner,
    private readonly layout: LockLayout,
    private readonly config: RedisLockBackendConfig,
  ) {}

  async acquire(options: AcquireOptions): Promise<AcquireResult> {
    const { key, ttlMs } = validateAcquire(options);
    const lockId = this.layout.createLockId(key);
    const keys = this.layout.keysOf(key, lockId);
    const sentAt = momentNow();
    // It may have run all the same: then a lock stands that nobody knows of.
    const undo = (late?: AcquireReply): void => {
      if (!late || late.status === 'granted') this.#undo(keys, lockId, ttlMs);
    };
    const args = { lockId, ttlMs, keyJson: JSON.stringify(key) };
    const reply = await this.runner
      .run(acquireScript, keys, args, { signal: options.signal, undo })
      .catch((fault: unknown) => {
        throw LockError.from(fault, { key });
      });
    return this.#toAcquireResult(reply, { key, lockId, ttlMs, sentAt });
  }

  async release(options: ReleaseOptions): Promise<ReleaseResult> {
    const lockId = validateRelease(options);
    const live = options.held !== undefined && msUntil(options.held.deadline) > 0;
    let replayed = false;
    const onReplay = (): void => void (replayed = true);
    const code = await this.#attributed(options, this.#release(lockId, options, live, onReplay));
    // Our live lock was not there when the command ran for the second time: the first had released it.
    const wasReleased = code === 'released' || (code === 'not_found' && live && replayed);
    return wasReleased ? { ok: true } : withDetail({ ok: false }, { reason: code });
  }

  async extend(options: ExtendOptions): Promise<ExtendResult> {
    const { lockId, ttlMs } = validateExtend(options);
    const reply = await this.#attributed(options, this.#extend(lockId, ttlMs, options));
    return reply.code === 'extended'
      ? { ok: true, expiresAtMs: reply.expiresAtMs }
      : withDetail({ ok: false }, { reason: reply.code });
  }

  async isLocked(options: IsLockedOptions): Promise<boolean> {
    const key = validateIsLocked(options);
    const read = await this.#read(key, options.signal);
    if (!read) return false;
    const { record, nowMs } = read;
    if (isLive(record.expiresAtMs, nowMs, TIME_TOLERANCE_MS)) return true;
    if (this.config.cleanupInIsLocked && !isLive(record.expiresAtMs, nowMs, CLEANUP_AFTER_MS))
      this.#cleanup(key, record);
    return false;
  }

  async lookup(options: LookupOptions): Promise<LockInfo | null> {
    const wanted = validateLookup(options);
    const record =
      'key' in wanted
        ? await this.#liveByKey(wanted.key, options.signal)
        : await this.#liveById(wanted.lockId, options.signal);
    return record && toLockInfo(record);
  }

  async getByKeyRaw(key: string): Promise<RawLockInfo | null> {
    const record = await this.#liveByKey(validateKey(key));
    return record && toRawLockInfo(record);
  }

  async getByIdRaw(lockId: string): Promise<RawLockInfo | null> {
    const record = await this.#liveById(validateLockId(lockId));
    return record && toRawLockInfo(record);
  }

  #toAcquireResult(
    reply: AcquireReply,
    grant: { key: string; lockId: string; ttlMs: number; sentAt: Moment },
  ): AcquireResult {
    switch (reply.status) {
      case 'granted':
        if (reply.fence > FENCE_THRESHOLDS.WARN) this.#warnOfFence(grant.key);
        return new LockHandle(this, { ...grant, fence: reply.fence, expiresAtMs: reply.expiresAtMs });
      case 'locked':
        return withDetail(
          { ok: false, reason: 'locked' },
          { reason: 'locked', remainingMs: reply.remainingMs },
        );
      case 'fence-overflow':
        throw new LockError({
          code: 'Internal',
          message: `The fence counter of this key is above ${FENCE_THRESHOLDS.MAX}: no more locks are granted for it.`,
          hint: 'Something other than SyncGuard has set it. Use another key: a counter that starts again would let old holders in.',
          context: { keyHash: hashKey(grant.key) },
        });
    }
  }

  async flush(): Promise<void> {
    await this.runner.untilAnswered(LAST_ANSWERS_MS);
    await this.#undos.flush();
  }

  #release(
    lockId: string,
    { held, signal }: ReleaseOptions,
    live: boolean,
    onReplay: () => void,
  ): Promise<ReleaseCode> {
    if (!held) return this.#releaseById(lockId, signal);
    const script = live ? releaseHeldScript : releaseScript;
    return this.runner.run(script, this.layout.keysOf(held.key, lockId), { lockId }, { signal, onReplay });
  }

  #releaseById(lockId: string, signal: AbortSignal | undefined): Promise<ReleaseCode> {
    const mark = this.layout.markOf(lockId);
    const args = { lockId, nonce: createLockId() };
    return this.#byId<ReleaseCode>(lockId, signal, 'not_found', {
      once: (index, options) => this.runner.run(releaseByIdScript, { index, mark }, args, options),
      found: (keys, options) => this.runner.run(releaseFoundScript, { ...keys, mark }, args, options),
    });
  }

  #extend(lockId: string, ttlMs: number, { held, signal }: ReleaseOptions): Promise<ExtendReply> {
    if (!held)
      return this.#byId<ExtendReply>(
        lockId,
        signal,
        { code: 'not_found' },
        {
          once: (index, options) => this.runner.run(extendByIdScript, { index }, { lockId, ttlMs }, options),
          found: (keys, options) => this.runner.run(extendScript, keys, { lockId, ttlMs }, options),
        },
      );
    return this.runner.run(extendScript, this.layout.keysOf(held.key, lockId), { lockId, ttlMs }, { signal });
  }

  /** By a bare lockId: one trip where a script may follow the index, else the index first. */
  async #byId<Result>(
    lockId: string,
    signal: AbortSignal | undefined,
    none: Result,
    run: {
      once(index: string, options: RunOptions<Result>): Promise<Result>;
      found(keys: { index: string; record: string }, options: RunOptions<Result>): Promise<Result>;
    },
  ): Promise<Result> {
    const index = this.layout.indexOf(lockId);
    if (!this.layout.recordFromIndex) return run.once(index, { signal });
    const endMs = monotonicMs() + this.runner.commandTimeoutMs;
    const name = await this.runner.run(readIndexScript, { index }, {}, { signal });
    if (name === null) return none;
    // One deadline for both trips.
    const timeoutMs = Math.max(1, endMs - monotonicMs());
    return run.found({ index, record: this.layout.recordFromIndex(name) }, { signal, timeoutMs });
  }

  #read(key: string, signal?: AbortSignal): Promise<ReadReply | null> {
    return this.runner
      .run(readScript, { record: this.layout.recordOf(key) }, {}, { signal })
      .catch((fault: unknown) => {
        throw LockError.from(fault, { key });
      });
  }

  async #liveByKey(key: string, signal?: AbortSignal): Promise<LockRecord | null> {
    return liveRecord(await this.#read(key, signal));
  }

  async #liveById(lockId: string, signal?: AbortSignal): Promise<LockRecord | null> {
    const read = await this.#attributed(
      { lockId },
      this.#byId<ReadReply | null>(lockId, signal, null, {
        once: (index, options) => this.runner.run(readByIdScript, { index }, {}, options),
        found: ({ record }, options) => this.runner.run(readScript, { record }, {}, options),
      }),
    );
    return read?.record.lockId === lockId ? liveRecord(read) : null;
  }

  #attributed<T>({ lockId, held }: ReleaseOptions, result: Promise<T>): Promise<T> {
    return result.catch((fault: unknown) => {
      throw LockError.from(fault, held ? { key: held.key, lockId } : { lockId });
    });
  }

  /** On the next connection, if there is none now: the time counts from then on. */
  #undo(keys: { record: string; index: string }, lockId: string, ttlMs: number): void {
    const release = this.#releaseUnwanted(keys, lockId);
    this.runner.ready().then(
      () => this.#undos.start(release, ttlMs),
      () => {}, // The client was closed for good.
    );
  }

  /**
   * Undoes an acquire that may have run. "Not there" is believed the second time: the acquire may still lie in
   * the buffer of a connection that was lost.
   */
  #releaseUnwanted(keys: { record: string; index: string }, lockId: string): Attempt {
    let answers = 0;
    return async () => {
      const code = await this.runner.run(releaseScript, keys, { lockId });
      return code === 'released' || ++answers === 2;
    };
  }

  #cleanup(key: string, { lockId }: LockRecord): void {
    const { record, index } = this.layout.keysOf(key, lockId);
    // Best effort: what is not cleaned now is cleaned next time, or by its TTL.
    this.runner.run(cleanupScript, { record, index }, { lockId }).catch(() => {});
  }

  #warnOfFence(key: string): void {
    if (this.#warned) return;
    this.#warned = true;
    this.config.warn(
      `The fence counter of the lock ${hashKey(key)} is above ${FENCE_THRESHOLDS.WARN}; at ${FENCE_THRESHOLDS.MAX} it is at its end.`,
    );
  }
}

const liveRecord = (read: ReadReply | null): LockRecord | null =>
  read && isLive(read.record.expiresAtMs, read.nowMs, TIME_TOLERANCE_MS) ? read.record : null;
