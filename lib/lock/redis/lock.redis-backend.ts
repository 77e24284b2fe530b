import { type Attempt, BackgroundRetries } from '../../core/background-retries.js';
import { shownHash } from '../../core/keys.js';
import type { Peers } from '../../core/peers.js';
import { warningOnce } from '../../core/warn-once.js';
import type { ProcessChannel } from '../../script/process-channel.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import { type LockBackend, withDetail } from '../lock.backend.js';
import { fenceOverflow, LockError } from '../lock.errors.js';
import { BackendHandle, momentNow, msUntil } from '../lock.handle.js';
import { keyArgsOf, type LockLayout } from './lock.layout.js';
import { RedisLockLookups } from './lock.redis-lookup.js';
import { FENCE_THRESHOLDS, notReleased } from '../lock.record.js';
import { type LockRef, type RedisTurn, RedisTurns, type Wanted } from './lock.redis-turns.js';
import { acquireKeysFor } from './acquire-keys.script.js';
import { acquireScript } from './acquire.script.js';
import { extendFor } from './extend.script.js';
import type { AcquireReply, ReleaseCode } from './lock.replies.js';
import { releaseFor, releaseSeenFor } from './release.script.js';
import type {
  AcquireOptions,
  AcquireResult,
  ExtendOptions,
  ExtendResult,
  ForceReleaseOptions,
  ForceReleaseResult,
  HeldLock,
  LockTurn,
  Moment,
  RedisCapabilities,
  ReleaseOptions,
  ReleaseResult,
} from '../lock.types.js';
import { validateAcquire, validateExtend, validateForceRelease, validateRelease } from '../lock.validate.js';

const { WARN, MAX } = FENCE_THRESHOLDS;

/** How long a shutdown waits for answers to calls that were given up, in ms. */
const LAST_ANSWERS_MS = 500;

/** How long the backend tries to give up a place in a queue, in ms. A queue without new attempts expires after that. */
const LEAVE_MS = 60_000;

export interface RedisLockBackendConfig {
  cleanupInIsLocked: boolean;
  channel: ProcessChannel;
  /** Reaches the other processes. Undefined without the option `operations`. */
  peers?: Peers | undefined;
  /** Called once when a fence counter comes near its end. */
  warn(message: string): void;
}

/** Locks on Redis. Each operation is one atomic script. docs/wire-format.md describes the keys. */
export class RedisLockBackend extends RedisLockLookups implements LockBackend<RedisCapabilities> {
  readonly capabilities: RedisCapabilities = {
    backend: 'redis',
    supportsFencing: true,
    timeAuthority: 'server',
  };
  readonly #undos = new BackgroundRetries();
  readonly #turns: RedisTurns;
  readonly #warnOnce = warningOnce((message) => this.config.warn(message));

  constructor(
    runner: ScriptRunner,
    layout: LockLayout,
    private readonly config: RedisLockBackendConfig,
  ) {
    super(runner, layout, config.cleanupInIsLocked);
    this.#turns = new RedisTurns(runner, {
      ...{ layout, channel: config.channel },
      leave: (...left) => this.#leave(...left),
    });
  }

  /** Promises are chained and not awaited where each call of a lock passes: an async function makes one more of them. */
  acquire(options: AcquireOptions): Promise<AcquireResult> {
    const turn = options?.turn as RedisTurn | undefined;
    try {
      // The attempts of a turn all ask for the same.
      const wanted = turn?.wanted ?? this.#want(validateAcquire(options));
      if (turn) return this.#acquireInTurn(turn, (turn.wanted = wanted), options.signal);
      const sentAt = momentNow();
      // The call has failed, but the script may have run. A lock that it took must be released.
      const undo = (late?: AcquireReply): void => {
        if (!late || late.status === 'granted') this.#leave(wanted, '', 'unknown');
      };
      return this.#ask(wanted, undefined, { signal: options.signal, undo }, (reply) =>
        this.#toAcquireResult(reply, wanted, sentAt),
      );
    } catch (error) {
      return Promise.reject(error);
    }
  }

  takeTurn({ pollMs, isNested = false }: { pollMs: number; isNested?: boolean }): LockTurn {
    return this.#turns.take(pollMs, isNested);
  }

  release(options: ReleaseOptions): Promise<ReleaseResult> {
    if (!options?.held) return this.#releaseById(options);
    const { held, lockId, signal } = options;
    const isLive = msUntil(held.deadline) > 0;
    return this.#release({ keys: held.keys, ref: held.ref, lockId, isLive }, signal);
  }

  async extend(options: ExtendOptions): Promise<ExtendResult> {
    const { lockId, ttlMs } = validateExtend(options);
    const { held, signal } = options;
    try {
      let reply = held ?? (await this.extendFound(lockId, ttlMs, signal));
      if ('keys' in reply) {
        const { names } = this.#refOf(reply.keys, lockId, held?.ref);
        const args = { lockId, ttlMs, ...this.#turns.handing };
        const priority = 'renewal';
        reply = await this.runner.run(extendFor(reply.keys.length), names, args, { signal, priority });
      }
      return reply.code === 'extended'
        ? { ok: true, expiresAtMs: reply.expiresAtMs }
        : withDetail({ ok: false }, { reason: reply.code });
    } catch (fault) {
      throw LockError.from(fault, { keys: held?.keys, lockId });
    }
  }

  async forceRelease(key: string, options: ForceReleaseOptions): Promise<ForceReleaseResult> {
    const name = validateForceRelease(key, options);
    const { fence, signal } = options;
    const seen = await this.find({ key: name }, signal);
    if (!seen) return { released: false };
    const { lockId } = seen;
    // Only the record of its first key names all keys of a lock. A claim has no index yet, and one key.
    const { keys = [name] } = (await this.find({ lockId }, signal)) ?? {};
    // By its lockId and fence this ends the lock that was seen, or nothing.
    const { ok } = await this.#release({ keys, lockId, isLive: true, fence }, signal);
    return ok ? { released: true } : notReleased(await this.find({ key: name }, signal));
  }

  get peers(): Peers | undefined {
    return this.config.peers;
  }

  prepare(): Promise<void> {
    return this.config.channel.check();
  }

  async flush(): Promise<void> {
    await this.runner.untilAnswered(LAST_ANSWERS_MS);
    await this.#undos.flush();
    this.#turns.close();
  }

  async #releaseById(options: ReleaseOptions): Promise<ReleaseResult> {
    const lockId = validateRelease(options);
    const { signal } = options;
    const found = await this.releaseFound(lockId, signal);
    if (typeof found === 'string') return releaseResult(found);
    // The script that has found the lock has just seen it live.
    return this.#release({ keys: found.keys, lockId, isLive: true }, signal);
  }

  /** Returns what the scripts are given of the keys of a lock: `ref` from its grant, else computed. */
  #refOf(keys: readonly string[], lockId: string, ref?: object): LockRef {
    return (ref as LockRef | undefined) ?? { names: this.layout.keysOf(keys, lockId), json: keyArgsOf(keys) };
  }

  #want({ keys, ttlMs }: Pick<Wanted, 'keys' | 'ttlMs'>): Wanted {
    const lockId = this.layout.createLockId(keys);
    return { keys, lockId, ttlMs, ref: this.#refOf(keys, lockId) };
  }

  #acquireInTurn(turn: RedisTurn, wanted: Wanted, signal: AbortSignal | undefined): Promise<AcquireResult> {
    turn.begin();
    this.#turns.begin(turn);
    const sentAt = momentNow();
    const undo = (): void => this.#turns.late(turn, wanted);
    const priority = turn.claims() ? 'claim' : undefined;
    return this.#ask(wanted, turn, { signal, undo, priority }, (reply) => {
      const waits = reply.status === 'locked' ? this.#turns.locked(turn, reply) : {};
      const result = this.#toAcquireResult(reply, wanted, sentAt, waits);
      if (result.ok) this.#turns.granted(turn, result, reply.status === 'granted' && reply.wasHanded);
      return result;
    });
  }

  #ask(
    wanted: Wanted,
    turn: RedisTurn | undefined,
    options: RunOptions<AcquireReply>,
    onReply: (reply: AcquireReply) => AcquireResult,
  ): Promise<AcquireResult> {
    const { keys, lockId, ttlMs, ref } = wanted;
    const { channel, countsAll } = this.#turns.handing;
    const args = {
      lockId,
      ttlMs,
      channel,
      countsAll,
      process: turn?.process ?? '',
      ticket: turn?.ticketText ?? '',
      nested: turn?.isNested ? '1' : '',
      queueMs: turn?.queueMs ?? '',
      keyJson: ref.json.keyJson,
    };
    const asked =
      keys.length === 1
        ? this.runner.run(acquireScript, ref.names, args, options)
        : this.runner.run(acquireKeysFor(keys.length), ref.names, this.#ofKeys(wanted, turn, args), options);
    return asked.then(
      (reply) => {
        if (reply.status === 'locked') this.#turns.handedOver(keys, reply.handed);
        return onReply(reply);
      },
      (fault: unknown) => {
        if (turn) turn.fault = fault;
        throw LockError.from(fault, { keys });
      },
    );
  }

  /** Adds what only a call for several keys has. */
  #ofKeys<Args extends object>({ keys, ref }: Wanted, turn: RedisTurn | undefined, args: Args) {
    const several = { keeps: turn?.keeps ? '1' : '', keysJson: `,"keys":${JSON.stringify(keys)}` };
    return Object.assign(args, several, ref.json);
  }

  #toAcquireResult(
    reply: AcquireReply,
    { keys, lockId, ttlMs, ref }: Wanted,
    sentAt: Moment,
    waits: { lookAgainMs?: number } = {},
  ) {
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

  #release(
    { keys, ref, lockId, isLive = false, waiter = '', fence }: Release,
    signal?: AbortSignal,
  ): Promise<ReleaseResult> {
    const { names, json } = this.#refOf(keys, lockId, ref);
    const { channel, countsAll } = this.#turns.handing;
    const args = {
      channel,
      countsAll,
      lockId,
      leaver: waiter,
      isLive: isLive ? '1' : '',
      keyJson: json.keyJson,
    };
    if (keys.length > 1) Object.assign(args, json);
    let replayed = false;
    const onReplay = (): void => void (replayed = true);
    const options = { signal, onReplay };
    const asked =
      fence === undefined
        ? this.runner.run(releaseFor(keys.length), names, args, options)
        : this.runner.run(releaseSeenFor(keys.length), names, { ...args, seenFence: fence }, options);
    return asked.then(
      ({ code, handed }) => {
        this.#turns.handedOver(keys, handed);
        // The command ran twice. The second run did not find our live lock, because the first run had released it.
        return releaseResult(code !== 'expired' && isLive && replayed ? 'released' : code);
      },
      (fault: unknown) => {
        throw LockError.from(fault, { keys, lockId });
      },
    );
  }

  /**
   * Leaves the queues and releases what the call may have been granted. Without a connection this waits for the next one,
   * and the time for the retries counts from then.
   *
   * @param fault - the fault of the last attempt, which may have run. Nothing is sent while Redis still owes its reply.
   * @param keptUntilMs - a lock with `minHoldMs` is kept until then, as `performance.now()` counts
   */
  #leave({ keys, lockId, ttlMs, ref }: Wanted, waiter: string, fault: unknown, keptUntilMs = 0): void {
    // How many releases must find no lock before no more are sent. An acquire in the buffer of a lost connection may still
    // run after the first of them.
    let answers = fault === undefined ? 1 : 2;
    const giveBack = async (): Promise<boolean> => {
      const keepMs = Math.ceil(keptUntilMs - performance.now());
      if (keepMs <= 0) return (await this.#release({ keys, lockId, waiter })).ok;
      const args = { lockId, ttlMs: keepMs, ...this.#turns.handing };
      const { code } = await this.runner.run(extendFor(keys.length), ref.names, args);
      return code === 'extended';
    };
    const attempt: Attempt = async () => (await giveBack()) || --answers === 0;
    this.runner.ready().then(
      () => this.#undos.start(attempt, Math.max(ttlMs, waiter ? LEAVE_MS : 0), fault),
      () => {}, // The client was closed for good. The lock expires.
    );
  }

  #warnOfFence(keys: readonly string[]): void {
    this.#warnOnce(
      `LOCK_FENCE_HIGH: The fence counter of the lock ${keys.map(shownHash).join(', ')} is above ${WARN}. Above ${MAX} no more locks are granted for this key.`,
    );
  }
}

const releaseResult = (code: ReleaseCode): ReleaseResult =>
  code === 'released' ? { ok: true } : withDetail({ ok: false }, { reason: code });

/** A release of a lock, with what this backend has computed for its keys when it granted it. */
interface Release extends Pick<HeldLock, 'keys' | 'ref'> {
  readonly lockId: string;
  readonly isLive?: boolean;
  /** The name of a waiter that leaves the queues of the keys. */
  readonly waiter?: string;
  /** Only a lock of this fence is released. */
  readonly fence?: string;
}
