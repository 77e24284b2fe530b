import { AsyncResource } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { RedisSubscriber } from '../../redis/redis.subscriber.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { settleWithin } from '../../core/settle-within.js';
import type { LockKeys, LockLayout } from './lock.layout.js';
import type { AcquireReply } from './acquire.script.js';
import type { HandedOver } from './lock.replies.js';
import { handOnScript, publishScript } from './hand-on.scripts.js';
import { CLAIM_MS, KEEPING_LOOK_MS } from '../lock.times.js';
import type { BackendHandle } from '../lock.handle.js';
import { WaitingTurn } from '../waiting-turn.js';

/** The pause between two attempts of a waiter that no message can reach. A claim lasts longer, so it is not missed. */
const UNHEARD_LOOK_MS = 200;

/**
 * How long a waiter waits for its subscriber to connect. A claim lasts longer, so a turn that comes meanwhile is not
 * missed.
 */
const OPEN_MS = CLAIM_MS - 100;

/** The process name of waiters that no message can reach. They repeat their attempts by themselves. */
const UNHEARD = '-';
const PROCESS_BYTES = 12;
const LOCK_ID_LENGTH = 22;

/** What a call asks for. All attempts of one turn use the same lockId. */
export interface Wanted {
  readonly keys: readonly string[];
  readonly lockId: string;
  readonly ttlMs: number;
  readonly ref: LockRef;
}

/** What the scripts are given of the keys of a lock. It is computed once for each lock. */
export interface LockRef {
  readonly names: LockKeys;
  /** The user's keys as JSON, under the names of the scripts' arguments. */
  readonly json: { readonly keyJson: string };
}

export class RedisTurn extends WaitingTurn {
  wanted: Wanted | undefined;
  ticket = '';
  /** The fault of the last attempt that failed. */
  fault: unknown;
  /** The lock that the turn was granted. */
  handle: BackendHandle | undefined;
  /** The process name under which the turn stands in the queues. */
  process = UNHEARD;

  locked({ ticket, place, passedOn }: Extract<AcquireReply, { status: 'locked' }>): void {
    this.ticket = ticket;
    if (place > 0) this.place ??= place;
    if (passedOn) this.passed();
  }
}

export interface RedisTurnsConfig {
  readonly layout: LockLayout;
  /** Called when a turn that made an attempt has left. `waiter` is the name under which it stands in the queues. */
  leave(wanted: Wanted, waiter: string, fault: unknown): void;
  /** Called once, if the ACL forbids SUBSCRIBE or PUBLISH, so that no message can wake waiters. */
  onUnheard?(): void;
}

/**
 * Keeps the waiters of this process, wakes them when their turn comes, and checks locks that this process has handed
 * over.
 */
export class RedisTurns {
  /** The arguments of scripts that hand a lock over. `countsAll` is '' on a Cluster, where a node counts its own subscribers only. */
  readonly handing: { readonly channel: string; readonly countsAll: string };
  readonly #process = randomBytes(PROCESS_BYTES).toString('base64url');
  readonly #waiting = new Map<string, RedisTurn>();
  readonly #subscriber: RedisSubscriber;
  readonly #claims: ClaimWatch;
  #mayPublish: boolean | undefined;
  #isWarned = false;

  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisTurnsConfig,
  ) {
    const { channel } = config.layout;
    this.handing = { channel, countsAll: runner.client.isCluster ? '' : '1' };
    this.#claims = new ClaimWatch((key, waiter) => this.#handOn(key, waiter));
    this.#subscriber = new RedisSubscriber(runner.client, channel + this.#process, {
      onMessage: (lockId) => this.#waiting.get(lockId)?.wake(),
      onListening: () => this.#wakeAll(),
      isNeeded: () => this.#waiting.size > 0,
    });
  }

  take(pollMs: number): RedisTurn {
    const turn: RedisTurn = new RedisTurn(pollMs, () => this.settle(turn));
    return turn;
  }

  /** Called when an attempt begins, which may put the turn into a queue. */
  begin(turn: RedisTurn, lockId: string): void {
    this.#waiting.set(lockId, turn);
    if (this.#subscriber.isListening && this.#mayPublish) turn.process = this.#process;
  }

  /**
   * Called when the turn stands in a queue. Resolves to true if messages can reach the turn from now on, and could not
   * before. The caller then repeats its attempt, so that the queue has the name of its process.
   */
  async comesToHear(turn: RedisTurn, signal: AbortSignal | undefined): Promise<boolean> {
    if (turn.process !== UNHEARD || !(await this.#canBeTold(signal))) return false;
    turn.process = this.#process;
    return true;
  }

  granted(turn: RedisTurn, handle: BackendHandle, wasWoken: boolean): void {
    this.#waiting.delete(handle.lockId);
    turn.handle = handle;
    // A grant that arrives too late is released, perhaps twice, the second time in the background. So the next attempt
    // of this turn uses a new lockId, whose lock that release cannot end.
    turn.wanted = undefined;
    if (turn.ticket !== '' && !wasWoken) this.#subscriber.suspect();
  }

  locked(turn: RedisTurn, reply: Extract<AcquireReply, { status: 'locked' }>): { lookAgainMs: number } {
    if (reply.dropped) this.#subscriber.suspect();
    return { lookAgainMs: this.#lookAgainMs(turn, reply.remainingMs) };
  }

  /** Called with the locks that a script of this process has handed over. */
  handedOver(keys: readonly string[], handed: readonly HandedOver[]): void {
    for (const { key, waiter } of handed) this.#claims.watch(keys[key] as string, waiter);
  }

  /** Called when a turn has left. */
  settle({ wanted, process, fault }: RedisTurn): void {
    if (!wanted) return;
    this.#waiting.delete(wanted.lockId);
    this.config.leave(wanted, wanted.lockId + process, fault);
  }

  /**
   * Called when an attempt that has failed was answered after all, or may have been. If the turn still waits, its next
   * attempt takes what this one has got. If a later attempt got the lock, this one may have run after the release: a
   * Cluster client sends a command again where a master was lost.
   */
  late(turn: RedisTurn, wanted: Wanted): void {
    if (turn.hasLeft) this.settle(turn);
    else if (turn.wanted !== wanted && turn.handle?.isOver)
      this.config.leave(wanted, wanted.lockId + turn.process, 'unknown');
  }

  /** Called at boot. Warns if messages cannot reach waiters. */
  async check(): Promise<void> {
    await this.#canBeTold(undefined);
    if (this.#waiting.size === 0) this.#subscriber.pause();
  }

  close(): void {
    this.#claims.close();
    this.#subscriber.close();
    this.#wakeAll(); // No message reaches the waiters any more, so they try again by themselves.
  }

  #lookAgainMs({ keeps, process, pollMs }: RedisTurn, remainingMs: number): number {
    if (keeps) return KEEPING_LOOK_MS;
    const isHeard = process !== UNHEARD && this.#subscriber.isListening;
    return isHeard ? Math.min(remainingMs + 1, pollMs) : Math.min(UNHEARD_LOOK_MS, pollMs);
  }

  async #canBeTold(signal: AbortSignal | undefined): Promise<boolean> {
    if (!this.#subscriber.isListening || this.#mayPublish !== true)
      await settleWithin(OPEN_MS, [this.#listens()], signal);
    return this.#subscriber.isListening && this.#mayPublish === true;
  }

  async #listens(): Promise<void> {
    if ((await this.#subscriber.open()) && this.#mayPublish === undefined) await this.#checkPublish();
    if (this.#subscriber.isRefused || this.#mayPublish === false) this.#warn();
  }

  async #checkPublish(): Promise<void> {
    const { channel } = this.handing;
    this.#mayPublish = await this.runner
      .run(publishScript, {}, { channel: channel + this.#process })
      .catch(() => undefined);
  }

  #warn(): void {
    if (this.#isWarned) return;
    this.#isWarned = true;
    this.config.onUnheard?.();
  }

  #wakeAll(): void {
    for (const turn of this.#waiting.values()) turn.wake();
  }

  /** Runs the script that checks a claim. Returns which waiter to check next and when, or undefined if there is none. */
  async #handOn(key: string, waiter: string): Promise<{ waiter: string; afterMs: number } | undefined> {
    const names = this.config.layout.keysOf([key], waiter.slice(0, LOCK_ID_LENGTH));
    const args = {
      ...this.handing,
      process: waiter.slice(LOCK_ID_LENGTH),
      keyJson: JSON.stringify(key),
    };
    const reply = await this.runner.run(handOnScript, names, args);
    if (typeof reply === 'string') return { waiter: reply, afterMs: CLAIM_MS };
    return reply > 0 ? { waiter, afterMs: reply } : undefined;
  }
}

/** Added to the life of a claim, since a key may expire a moment late. */
const GRACE_MS = 10;

type HandOn = (key: string, waiter: string) => Promise<{ waiter: string; afterMs: number } | undefined>;

/** Checks the claims that this process has handed over, when they should have been taken. Uses one timer for each key. */
class ClaimWatch {
  readonly #claims = new Map<string, { waiter: string; atMs: number }>();
  readonly #context = new AsyncResource('SyncGuardClaimWatch');
  #isClosed = false;

  constructor(private readonly handOn: HandOn) {}

  watch(key: string, waiter: string, afterMs = CLAIM_MS): void {
    if (this.#isClosed) return;
    const claim = { waiter, atMs: performance.now() + afterMs + GRACE_MS };
    const isWatched = this.#claims.has(key);
    this.#claims.set(key, claim);
    if (!isWatched) this.#arm(key, claim.atMs);
  }

  close(): void {
    this.#isClosed = true;
    this.#claims.clear();
  }

  #arm(key: string, atMs: number): void {
    const delayMs = Math.max(1, Math.ceil(atMs - performance.now()));
    this.#context.runInAsyncScope(() => setTimeout(() => this.#look(key), delayMs).unref());
  }

  #look(key: string): void {
    const claim = this.#claims.get(key);
    if (!claim || this.#isClosed) return;
    if (performance.now() < claim.atMs) return this.#arm(key, claim.atMs);
    this.#claims.delete(key);
    this.handOn(key, claim.waiter).then(
      (next) => {
        if (next && !this.#claims.has(key)) this.watch(key, next.waiter, next.afterMs);
      },
      () => {}, // Redis cannot be reached. The waiters repeat their attempts by themselves, after longer pauses.
    );
  }
}
