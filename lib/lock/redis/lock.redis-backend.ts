import { type Attempt, BackgroundRetries } from '../../core/background-retries.js';
import { hashKey } from '../../core/keys.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import { type LockBackend, withDetail } from '../lock.backend.js';
import { fenceOverflow, LockError } from '../lock.errors.js';
import { BackendHandle, momentNow, msUntil } from '../lock.handle.js';
import { keyArgsOf, type LockLayout } from './lock.layout.js';
import { RedisLockLookups } from './lock.redis-lookup.js';
import { FENCE_THRESHOLDS, type LockRecord } from '../lock.record.js';
import { type LockRef, type RedisTurn, RedisTurns, type Wanted } from './lock.redis-turns.js';
import type { AcquireReply } from './acquire.script.js';
import type { ExtendReply, ReleaseCode } from './lock.replies.js';
import { scriptsFor } from './lock.scripts.js';
import type {
  AcquireOptions,
  AcquireResult,
  ExtendOptions,
  ExtendResult,
  HeldLock,
  LockTurn,
  Moment,
  RedisCapabilities,
  ReleaseOptions,
  ReleaseResult,
} from '../lock.types.js';
import { validateAcquire, validateExtend, validateRelease } from '../lock.validate.js';

const { WARN, MAX } = FENCE_THRESHOLDS;

/** How long a shutdown waits for answers to calls that were given up, in ms. */
const LAST_ANSWERS_MS = 500;

/** How long the backend tries to give up a place in a queue, in ms. A queue without new attempts expires after that. */
const LEAVE_MS = 60_000;

export interface RedisLockBackendConfig {
  cleanupInIsLocked: boolean;
  /** Called once, when a fence counter comes near its end. */
  warn(message: string): void;
  /** Called once, if the ACL forbids SUBSCRIBE or PUBLISH, so that no message can wake waiters. */
  onUnheard?(): void;
}

/** Locks on Redis. Each operation is one atomic script. docs/wire-format.md describes the keys. */
export class RedisLockBackend extends RedisLockLookups implements LockBackend<RedisCapabilities> {
  readonly capabilities: RedisCapabilities = {
    backend: 'redis',
    supportsFencing: true,
    timeAuthority: 'server',
  };
  readonly #single = scriptsFor(1);
  readonly #undos = new BackgroundRetries();
  readonly #turns: RedisTurns;
  #warned = false;

  constructor(
    runner: ScriptRunner,
    layout: LockLayout,
    private readonly config: RedisLockBackendConfig,
  ) {
    super(runner, layout, config.cleanupInIsLocked);
    this.#turns = new RedisTurns(runner, {
      layout,
      leave: (wanted, waiter, fault) => this.#leave(wanted, waiter, fault),
      onUnheard: () => config.onUnheard?.(),
    });
  }

  async acquire(options: AcquireOptions): Promise<AcquireResult> {
    const turn = options?.turn as RedisTurn | undefined;
    // The attempts of a turn all ask for the same.
    const wanted = turn?.wanted ?? this.#want(validateAcquire(options));
    if (turn) return this.#acquireInTurn(turn, (turn.wanted = wanted), options.signal);
    const sentAt = momentNow();
    // The call has failed, but the script may have run. A lock that it took must be released.
    const undo = (late?: AcquireReply): void => {
      if (!late || late.status === 'granted') this.#leave(wanted, '', 'unknown');
    };
    const reply = await this.#ask(wanted, undefined, { signal: options.signal, undo });
    return this.#toAcquireResult(reply, wanted, sentAt);
  }

  takeTurn(options: { pollMs: number }): LockTurn {
    return this.#turns.take(options.pollMs);
  }

  async release(options: ReleaseOptions): Promise<ReleaseResult> {
    const lockId = options?.held ? options.lockId : validateRelease(options);
    const { held, signal } = options;
    const isLive = held !== undefined && msUntil(held.deadline) > 0;
    try {
      const code = held
        ? await this.#releaseHeld({ keys: held.keys, ref: held.ref, lockId, isLive }, signal)
        : await this.#releaseById(lockId, signal);
      return code === 'released' ? { ok: true } : withDetail({ ok: false }, { reason: code });
    } catch (fault) {
      throw LockError.from(fault, { keys: held?.keys, lockId });
    }
  }

  async extend(options: ExtendOptions): Promise<ExtendResult> {
    const { lockId, ttlMs } = validateExtend(options);
    const { held, signal } = options;
    try {
      const reply = held
        ? await this.#extendHeld(held, lockId, ttlMs, signal)
        : await this.#extendById(lockId, ttlMs, signal);
      return reply.code === 'extended'
        ? { ok: true, expiresAtMs: reply.expiresAtMs }
        : withDetail({ ok: false }, { reason: reply.code });
    } catch (fault) {
      throw LockError.from(fault, { keys: held?.keys, lockId });
    }
  }

  prepare(): Promise<void> {
    return this.#turns.check();
  }

  async flush(): Promise<void> {
    await this.runner.untilAnswered(LAST_ANSWERS_MS);
    await this.#undos.flush();
    this.#turns.close();
  }

  #refOf(keys: readonly string[], lockId: string): LockRef {
    return { names: this.layout.keysOf(keys, lockId), json: keyArgsOf(keys) };
  }

  #scriptsFor({ length }: readonly string[]): ReturnType<typeof scriptsFor> {
    return length === 1 ? this.#single : scriptsFor(length);
  }

  #want({ keys, ttlMs }: Pick<Wanted, 'keys' | 'ttlMs'>): Wanted {
    const lockId = this.layout.createLockId(keys);
    return { keys, lockId, ttlMs, ref: this.#refOf(keys, lockId) };
  }

  async #acquireInTurn(
    turn: RedisTurn,
    wanted: Wanted,
    signal: AbortSignal | undefined,
  ): Promise<AcquireResult> {
    const wasWoken = turn.begin();
    this.#turns.begin(turn, wanted.lockId);
    let sentAt = momentNow();
    let reply = await this.#ask(wanted, turn, { signal });
    if (reply.status === 'locked' && (await this.#turns.comesToHear(turn, signal))) {
      turn.begin();
      sentAt = momentNow();
      reply = await this.#ask(wanted, turn, { signal });
    }
    if (reply.status === 'granted') this.#turns.granted(turn, wanted.lockId, wasWoken);
    const waits = reply.status === 'locked' ? this.#turns.locked(turn, reply) : {};
    return this.#toAcquireResult(reply, wanted, sentAt, waits);
  }

  async #ask(
    { keys, lockId, ttlMs, ref }: Wanted,
    turn: RedisTurn | undefined,
    options: RunOptions<AcquireReply>,
  ): Promise<AcquireReply> {
    const { channel, countsAll } = this.#turns.handing;
    const args = {
      lockId,
      ttlMs,
      channel,
      countsAll,
      process: turn?.process ?? '',
      ticket: turn?.ticket ?? '',
      keeps: turn?.keeps ? '1' : '',
      keysJson: keys.length > 1 ? `,"keys":${JSON.stringify(keys)}` : '',
      keyJson: ref.json.keyJson,
    };
    if (keys.length > 1) Object.assign(args, ref.json);
    // A waiting call repeats its attempt with the same lockId, so a failed attempt is undone only after the turn has left.
    const undo = turn && ((): void => (turn.hasLeft ? this.#turns.settle(turn) : undefined));
    const { acquire } = this.#scriptsFor(keys);
    try {
      const reply = await this.runner.run(acquire, ref.names, args, undo ? { undo, ...options } : options);
      if (reply.status === 'locked') {
        turn?.locked(reply);
        this.#turns.handedOver(keys, reply.handed);
      }
      return reply;
    } catch (fault) {
      if (turn) turn.fault = fault;
      throw LockError.from(fault, { keys });
    }
  }

  #toAcquireResult(
    reply: AcquireReply,
    { keys, lockId, ttlMs, ref }: Wanted,
    sentAt: Moment,
    waits: { lookAgainMs?: number } = {},
  ): AcquireResult {
    switch (reply.status) {
      case 'granted': {
        const { fence, expiresAtMs } = reply;
        if (fence > WARN) this.#warnOfFence(keys);
        return new BackendHandle(this, { keys, lockId, ttlMs, sentAt, fence, expiresAtMs, ref });
      }
      case 'locked':
        return withDetail(
          { ok: false, reason: 'locked' },
          { reason: 'locked', remainingMs: reply.remainingMs, ...waits },
        );
      case 'fence-overflow':
        throw fenceOverflow(keys, MAX);
    }
  }

  async #releaseHeld(lock: Release, signal: AbortSignal | undefined): Promise<ReleaseCode> {
    let replayed = false;
    const onReplay = (): void => void (replayed = true);
    const code = await this.#release(lock, { signal, onReplay });
    // The command ran twice. The second run did not find our live lock, because the first run had released it.
    return code !== 'expired' && lock.isLive && replayed ? 'released' : code;
  }

  async #release(
    { keys, lockId, isLive = false, waiter = '', ...held }: Release,
    { signal, onReplay }: { signal?: AbortSignal | undefined; onReplay?: () => void } = {},
  ): Promise<ReleaseCode> {
    const { names, json } = (held.ref as LockRef | undefined) ?? this.#refOf(keys, lockId);
    const { channel, countsAll } = this.#turns.handing;
    const args = { channel, countsAll, lockId, waiter, isLive: isLive ? '1' : '', keyJson: json.keyJson };
    if (keys.length > 1) Object.assign(args, json);
    const { code, handed } = await this.runner.run(this.#scriptsFor(keys).release, names, args, {
      signal,
      onReplay,
    });
    this.#turns.handedOver(keys, handed);
    return code;
  }

  async #releaseById(lockId: string, signal: AbortSignal | undefined): Promise<ReleaseCode> {
    const reply = await this.releaseFound(lockId, signal);
    // The script has just read the record of our live lock, so the holder's check by the clock is not needed.
    return typeof reply === 'string'
      ? reply
      : this.#releaseHeld({ keys: keysIn(reply), lockId, isLive: true }, signal);
  }

  #extendHeld(
    { keys, ref }: Named,
    lockId: string,
    ttlMs: number,
    signal: AbortSignal | undefined,
  ): Promise<ExtendReply> {
    const { names } = (ref as LockRef | undefined) ?? this.#refOf(keys, lockId);
    const { channel, countsAll } = this.#turns.handing;
    const args = { lockId, ttlMs, channel, countsAll };
    return this.runner.run(this.#scriptsFor(keys).extend, names, args, { signal });
  }

  async #extendById(lockId: string, ttlMs: number, signal: AbortSignal | undefined): Promise<ExtendReply> {
    const reply = await this.extendFound(lockId, ttlMs, signal);
    return 'code' in reply ? reply : this.#extendHeld({ keys: keysIn(reply) }, lockId, ttlMs, signal);
  }

  /**
   * Leaves the queues and releases what the call may have been granted. Without a connection this waits for the next one,
   * and the time for the retries counts from then.
   *
   * @param fault - the fault of the last attempt, which may have run. Nothing is sent while Redis still owes its reply.
   */
  #leave({ keys, lockId, ttlMs }: Wanted, waiter: string, fault: unknown): void {
    // How many releases must find no lock before no more are sent. An acquire in the buffer of a lost connection may still
    // run after the first of them.
    let answers = fault === undefined ? 1 : 2;
    const release: Attempt = async () =>
      (await this.#release({ keys, lockId, waiter })) === 'released' || --answers === 0;
    this.runner.ready().then(
      () => this.#undos.start(release, Math.max(ttlMs, waiter ? LEAVE_MS : 0), fault),
      () => {}, // The client was closed for good. The lock expires.
    );
  }

  #warnOfFence(keys: readonly string[]): void {
    if (this.#warned) return;
    this.#warned = true;
    this.config.warn(
      `LOCK_FENCE_HIGH: The fence counter of the lock ${keys.map(hashKey).join(', ')} is above ${WARN}. Above ${MAX} no more locks are granted for this key.`,
    );
  }
}

/** The keys of a lock, with what this backend has computed for them when it granted it. */
type Named = Pick<HeldLock, 'keys' | 'ref'>;

interface Release extends Named {
  readonly lockId: string;
  readonly isLive?: boolean;
  /** The name of a waiter that leaves the queues of the keys. */
  readonly waiter?: string;
}

const keysIn = ({ key, keys = [key] }: LockRecord): readonly string[] => keys;
