import { AsyncResource } from 'node:async_hooks';
import { monotonicMs } from '../clock.js';
import { RedisSubscriber } from '../redis/redis.subscriber.js';
import type { ScriptRunner } from '../script/script-runner.js';
import { settleWithin } from '../settle-within.js';
import { CLAIM_MS } from './lock.fragments.js';
import type { LockKeys, LockLayout } from './lock.layout.js';
import { createLockId } from './lock.record.js';
import { type AcquireReply, type HandedOver, handOnScript, KEEP_MS, publishScript } from './lock.scripts.js';
import type { LockTurn } from './lock.types.js';

/** In vain so often, and a call for several keys keeps what it is handed until it has all of them. */
const PASSES = 4;

/** How often a waiter looks that nobody can tell. Claims are its own for longer. */
const UNHEARD_LOOK_MS = 200;
const KEEPING_LOOK_MS = KEEP_MS / 2.5;

/** For the first connection of the subscriber. It is less than what a claim lasts: meanwhile it may be one's turn. */
const OPEN_MS = CLAIM_MS - 100;

/** A process that looks by itself: its waiters are not told of their turn. */
const UNHEARD = '-';
const PROCESS_LENGTH = 16;
const LOCK_ID_LENGTH = 22;

/** What a turn asks for; it has one lockId for all of its attempts. */
export interface Wanted {
  readonly keys: readonly string[];
  readonly lockId: string;
  readonly names: LockKeys;
  readonly ttlMs: number;
}

export class RedisTurn implements LockTurn {
  readonly sinceMs = monotonicMs();
  wanted: Wanted | undefined;
  place: number | undefined;
  ticket = '';
  /** Of the last attempt that failed. */
  fault: unknown;
  hasLeft = false;
  /** Its process as it stands in the queues. */
  process = UNHEARD;
  #timesPassed = 0;
  #listener: (() => void) | undefined;
  #isWoken = false;

  constructor(
    readonly pollMs: number,
    private readonly onLeave: (turn: RedisTurn) => void,
  ) {}

  get keeps(): boolean {
    return this.#timesPassed >= PASSES;
  }

  onWake(listener: (() => void) | undefined): void {
    this.#listener = listener;
    if (this.#isWoken) listener?.();
  }

  wake(): void {
    this.#isWoken = true;
    this.#listener?.();
  }

  /** An attempt begins: what wakes from here on comes after it. Returns whether it was woken before. */
  begin(): boolean {
    const wasWoken = this.#isWoken;
    this.#isWoken = false;
    return wasWoken;
  }

  locked({ ticket, place, passedOn }: Extract<AcquireReply, { status: 'locked' }>): void {
    this.ticket = ticket;
    if (place > 0) this.place ??= place;
    if (passedOn) this.#timesPassed++;
  }

  leave(): void {
    if (this.hasLeft) return;
    this.hasLeft = true;
    this.onLeave(this);
  }
}

export interface RedisTurnsConfig {
  readonly layout: LockLayout;
  /** Called when a turn has left that has asked for something. `waiter`: as it stands in the queues. */
  leave(wanted: Wanted, waiter: string, fault: unknown): void;
  /** Called once, when the ACL keeps waiters from being told of their turn. */
  onUnheard?(): void;
}

/** The waiters of this process: how they are told of their turn, and what was handed over to others by it. */
export class RedisTurns {
  /** For scripts that hand over. On a Cluster a node counts only its own subscribers. */
  readonly handing: { readonly channel: string; readonly countsAll: string };
  readonly #process = createLockId().slice(0, PROCESS_LENGTH);
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
    return new RedisTurn(pollMs, (turn) => this.settle(turn));
  }

  /** An attempt begins, which may put the turn into a queue. */
  begin(turn: RedisTurn, lockId: string): void {
    this.#waiting.set(lockId, turn);
    if (this.#subscriber.isListening && this.#mayPublish) turn.process = this.#process;
  }

  /** The turn stands in a queue. Resolves to true if it should do so again, since it can be told from now on. */
  async comesToHear(turn: RedisTurn, signal: AbortSignal | undefined): Promise<boolean> {
    if (turn.process !== UNHEARD || !(await this.#canBeTold(signal))) return false;
    turn.process = this.#process;
    return true;
  }

  granted(turn: RedisTurn, lockId: string, wasWoken: boolean): void {
    this.#waiting.delete(lockId);
    // A grant that comes too late to be used is given back, and may be so once more in the background: the next attempt
    // of this turn asks under another id.
    turn.wanted = undefined;
    if (turn.ticket !== '' && !wasWoken) this.#subscriber.suspect();
  }

  locked(turn: RedisTurn, reply: Extract<AcquireReply, { status: 'locked' }>): { lookAgainMs: number } {
    if (reply.dropped) this.#subscriber.suspect();
    return { lookAgainMs: this.#lookAgainMs(turn, reply.remainingMs) };
  }

  /** What a script of this process has handed over. */
  handedOver(keys: readonly string[], handed: readonly HandedOver[]): void {
    for (const { key, waiter } of handed) this.#claims.watch(keys[key] as string, waiter);
  }

  /** A turn has left; or its last attempt was answered after that. */
  settle(turn: RedisTurn): void {
    const { wanted, process, fault } = turn;
    if (!wanted) return;
    this.#waiting.delete(wanted.lockId);
    this.config.leave(wanted, wanted.lockId + process, fault);
  }

  /** At boot: warns if waiters cannot be told of their turn. */
  async check(): Promise<void> {
    await this.#canBeTold(undefined);
    if (this.#waiting.size === 0) this.#subscriber.pause();
  }

  close(): void {
    this.#claims.close();
    this.#subscriber.close();
    this.#wakeAll(); // From here on they look by themselves.
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

  /** Returns after how long to look again, and at whom. */
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

/** Claims may lapse a moment after the server's word. */
const GRACE_MS = 10;

type HandOn = (key: string, waiter: string) => Promise<{ waiter: string; afterMs: number } | undefined>;

/** Looks after what this process has handed over: one timer a key, which follows its last hand-over. */
class ClaimWatch {
  readonly #claims = new Map<string, { waiter: string; atMs: number }>();
  readonly #context = new AsyncResource('SyncGuardClaimWatch');
  #isClosed = false;

  constructor(private readonly handOn: HandOn) {}

  watch(key: string, waiter: string, afterMs = CLAIM_MS): void {
    if (this.#isClosed) return;
    const claim = { waiter, atMs: monotonicMs() + afterMs + GRACE_MS };
    const isWatched = this.#claims.has(key);
    this.#claims.set(key, claim);
    if (!isWatched) this.#arm(key, claim.atMs);
  }

  close(): void {
    this.#isClosed = true;
    this.#claims.clear();
  }

  #arm(key: string, atMs: number): void {
    const delayMs = Math.max(1, Math.ceil(atMs - monotonicMs()));
    this.#context.runInAsyncScope(() => setTimeout(() => this.#look(key), delayMs).unref());
  }

  #look(key: string): void {
    const claim = this.#claims.get(key);
    if (!claim || this.#isClosed) return;
    if (monotonicMs() < claim.atMs) return this.#arm(key, claim.atMs);
    this.#claims.delete(key);
    this.handOn(key, claim.waiter).then(
      (next) => {
        if (next && !this.#claims.has(key)) this.watch(key, next.waiter, next.afterMs);
      },
      () => {}, // Redis is away. The waiters look by themselves, if more rarely.
    );
  }
}
