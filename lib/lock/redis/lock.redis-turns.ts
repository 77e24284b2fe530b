import { AsyncResource } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { ProcessChannel } from '../../script/process-channel.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { LOCK_ID_LENGTH, type LockKeys, type LockLayout } from './lock.layout.js';
import type { AcquireReply, HandedOver } from './lock.replies.js';
import { handOnScript } from './hand-on.scripts.js';
import { CLAIM_MS, KEEPING_LOOK_MS } from '../lock.times.js';
import type { BackendHandle } from '../lock.handle.js';
import { WaitingLine, WaitingTurn } from '../waiting-turn.js';
import { QUEUE_MS } from './lock.queue.fragments.js';

/**
 * How often the first of a process's waiters for a key looks by itself, in ms, so that a free lock is found soon. It is a
 * little more than a second, so that a waiter sends less than one command a second.
 */
const LOOK_MS = 1_050;

/** The same, of waiters that no message can reach. A claim lasts longer, so it is not missed. */
const UNHEARD_LOOK_MS = 200;

/** Looks of one process come at multiples of this time, in ms, so that those for many keys are sent together. */
const GRID_MS = 50;

/** Stands behind the name of a process in the queues while no message can reach it. */
const UNHEARD = '-';

/** A queue lives for this time without an attempt, or for two pauses of its most patient waiter. */
const POLLS_PER_QUEUE = 2;

/** How many waiters are woken in one turn of the event loop where all are woken. */
const WOKEN_A_TURN = 256;

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
  /** The ticket as the scripts read it. Empty until the call waits. */
  ticketText = '';
  /** The fault of the last attempt that failed. */
  fault: unknown;
  /** The lock that the turn was granted. */
  handle: BackendHandle | undefined;
  /** The process name under which the turn makes its attempts. */
  process = '';
  /** The lock may have been handed to it. */
  #mayClaim = false;

  /** How long a queue must live that the turn stands in, in ms. */
  get queueMs(): number {
    return Math.max(QUEUE_MS, POLLS_PER_QUEUE * this.pollMs);
  }

  wakeToClaim(): void {
    this.#mayClaim = true;
    this.wake();
  }

  /** Returns whether the next attempt is to take a claim, which has no time to lose, and forgets it. */
  claims(): boolean {
    const claims = this.#mayClaim;
    this.#mayClaim = false;
    return claims;
  }
}

export interface RedisTurnsConfig {
  readonly layout: LockLayout;
  /** On which the process hears of hand-overs. */
  readonly channel: ProcessChannel;
  /**
   * Called when a turn that made an attempt has left. `waiter` is the name under which it stands in the queues. Its lock is
   * given back, or kept until `keptUntilMs`, as `performance.now()` counts.
   */
  leave(wanted: Wanted, waiter: string, fault: unknown, keptUntilMs?: number): void;
}

/**
 * Keeps the waiters of this process, wakes them when their turn comes, and checks locks that this process has handed
 * over. Of those that wait for one key only the first looks by itself, and the first of those that hold a lock: the others
 * come after them anyway.
 */
export class RedisTurns {
  /** The arguments of scripts that hand a lock over. `countsAll` is '' on a Cluster, where a node counts its own subscribers only. */
  readonly handing: { readonly channel: string; readonly countsAll: string };
  readonly #process: string;
  /**
   * Those that stand in no queue yet, as far as this process knows. Most locks are free, and their calls enter no `Map`: the
   * tables that a busy one leaves behind took a quarter of the CPU of a lock.
   */
  readonly #asking = new WaitingLine();
  /** Those that stand in a queue, by their lockIds. */
  readonly #waiting = new Map<string, RedisTurn>();
  readonly #lines = new Map<string, WaitingLine>();
  readonly #nestedLines = new Map<string, WaitingLine>();
  readonly #claims: ClaimWatch;

  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisTurnsConfig,
  ) {
    const { channel } = config;
    this.#process = channel.process;
    this.handing = { channel: channel.name, countsAll: runner.client.isCluster ? '' : '1' };
    this.#claims = new ClaimWatch((key, waiter) => this.#handOn(key, waiter));
    channel.join({
      onMessage: (lockId) => this.#turnOf(lockId)?.wakeToClaim(),
      onListening: () => void this.#wakeAll(), // The queues get the name by which the process can be told.
      onSilence: () => this.#wakeFirsts(), // They look more often from now on.
      isNeeded: () => this.#waiting.size + this.#asking.length > 0,
    });
    runner.readiness.onBack(() => void this.#wakeAll());
  }

  take(pollMs: number, isNested: boolean): RedisTurn {
    const turn: RedisTurn = new RedisTurn(pollMs, isNested, () => this.settle(turn));
    return turn;
  }

  /** Called when an attempt begins, which may put the turn into a queue. */
  begin(turn: RedisTurn): void {
    if (!turn.line) this.#asking.enter(turn);
    turn.process = this.config.channel.isTold ? this.#process : this.#process + UNHEARD;
  }

  granted(turn: RedisTurn, handle: BackendHandle, wasHanded: boolean): void {
    this.#remove(turn, turn.wanted as Wanted)?.lookIn(this.#lookMs);
    turn.handle = handle;
    // A grant that arrives too late is released, perhaps twice, the second time in the background. So the next attempt
    // of this turn uses a new lockId, whose lock that release cannot end.
    turn.wanted = undefined;
    if (!wasHanded) this.#wakeFirsts();
  }

  locked(
    turn: RedisTurn,
    { remainingMs, ticket, place, ...reply }: Extract<AcquireReply, { status: 'locked' }>,
  ): { lookAgainMs: number } {
    turn.ticketText = ticket;
    turn.ticket = Number(ticket);
    if (place > 0) turn.place ??= place;
    if (reply.passedOn) turn.passed();
    if (turn.wanted && !turn.hasLeft) this.#enter(turn, turn.wanted);
    this.config.channel.rely();
    this.#turnOf(reply.claimer)?.wakeToClaim();
    if (reply.dropped) void this.#wakeAll();
    else if (reply.cameBack) this.#wakeFirsts();
    return { lookAgainMs: this.#lookAgainMs(turn, turn.line?.first === turn, remainingMs) };
  }

  /** Called with the locks that a script of this process has handed over. */
  handedOver(keys: readonly string[], handed: readonly HandedOver[]): void {
    for (const { key, waiter } of handed) this.#claims.watch(keys[key] as string, waiter);
  }

  /** Called when a turn has left. */
  settle(turn: RedisTurn): void {
    const { wanted, fault } = turn;
    if (!wanted) return;
    // The next one knows nothing of the lock's TTL, which the one that left would have looked after.
    this.#remove(turn, wanted)?.wake();
    this.config.leave(wanted, wanted.lockId + this.#process, fault);
  }

  /**
   * Called when an attempt that has failed was answered after all, or may have been. If the turn still waits, its next
   * attempt takes what this one has got. If a later attempt got the lock, this one may have run after the lock was given
   * back: a Cluster client sends a command again where a master was lost.
   */
  late(turn: RedisTurn, wanted: Wanted): void {
    if (turn.hasLeft) this.settle(turn);
    else if (turn.wanted !== wanted && turn.handle?.isOver)
      this.config.leave(wanted, wanted.lockId + this.#process, 'unknown', turn.handle.keptUntilMs);
  }

  close(): void {
    this.#claims.close();
    this.config.channel.close();
    void this.#wakeAll(); // No message reaches the waiters any more, so they try again by themselves.
  }

  get #lookMs(): number {
    return this.config.channel.isHeard ? LOOK_MS : UNHEARD_LOOK_MS;
  }

  /** The line of those that wait for the same key. A call for several keys may wait for any of them, so it looks by itself. */
  #lineOf({ isNested }: RedisTurn, { keys }: Wanted): WaitingLine {
    if (keys.length > 1) return new WaitingLine();
    const [key] = keys as [string];
    const lines = isNested ? this.#nestedLines : this.#lines;
    let line = lines.get(key);
    if (!line) lines.set(key, (line = new WaitingLine()));
    return line;
  }

  #enter(turn: RedisTurn, wanted: Wanted): void {
    if (turn.line && turn.line !== this.#asking) return;
    turn.line?.leave(turn);
    this.#waiting.set(wanted.lockId, turn);
    this.#lineOf(turn, wanted).enter(turn);
  }

  /** The message of a hand-over may come before the reply by which the turn learns that it waits. */
  #turnOf(lockId: string): RedisTurn | undefined {
    const found = this.#waiting.get(lockId);
    // The channel is that of all features: most messages name no lock.
    if (found || lockId.length !== LOCK_ID_LENGTH) return found;
    return (this.#asking.turns() as RedisTurn[]).find(({ wanted }) => wanted?.lockId === lockId);
  }

  /** Returns the turn that has to look from now on, if that was the task of the one that leaves. */
  #remove(turn: RedisTurn, { keys, lockId }: Wanted): WaitingTurn | undefined {
    const { line } = turn;
    const next = line?.leave(turn);
    if (line === this.#asking) return undefined;
    this.#waiting.delete(lockId);
    if (line && !line.first && keys.length === 1)
      (turn.isNested ? this.#nestedLines : this.#lines).delete(keys[0] as string);
    return next;
  }

  #lookAgainMs({ keeps, pollMs }: RedisTurn, isFirst: boolean, remainingMs: number): number {
    if (keeps) return KEEPING_LOOK_MS;
    if (!isFirst) return pollMs;
    const nowMs = performance.now();
    const onGridMs = Math.floor((nowMs + this.#lookMs) / GRID_MS) * GRID_MS - nowMs;
    return Math.min(remainingMs + 1, pollMs, onGridMs);
  }

  /** Wakes some in each turn of the event loop, so that thousands do not stop the process. */
  async #wakeAll(): Promise<void> {
    let woken = 0;
    for (const turn of [...this.#waiting.values(), ...this.#asking.turns()]) {
      if (woken++ % WOKEN_A_TURN === WOKEN_A_TURN - 1) await nextTurn();
      turn.wake();
    }
  }

  /** Wakes those that look for the others. */
  #wakeFirsts(): void {
    for (const turn of this.#waiting.values()) if (turn.line?.first === turn) turn.wake();
  }

  /** Runs the script that checks a claim. Returns which waiter to check next and when, or undefined if there is none. */
  async #handOn(key: string, waiter: string): Promise<{ waiter: string; afterMs: number } | undefined> {
    const names = this.config.layout.keysOf([key], waiter.slice(0, LOCK_ID_LENGTH));
    const reply = await this.runner.run(handOnScript, names, {
      ...this.handing,
      keyJson: JSON.stringify(key),
    });
    if (typeof reply === 'string') return { waiter: reply, afterMs: CLAIM_MS };
    return reply > 0 ? { waiter, afterMs: Math.min(reply, CLAIM_MS) } : undefined;
  }
}

/** Added to the life of a claim, since a key may expire a moment late. */
const GRACE_MS = 10;

/**
 * How often a key is looked at after this process has handed it over. More are needed only where a hundred processes of
 * its queue stand still, and there the waiters look by themselves.
 */
const MOST_LOOKS = 100;

type HandOn = (key: string, waiter: string) => Promise<{ waiter: string; afterMs: number } | undefined>;

interface Claim {
  readonly waiter: string;
  readonly atMs: number;
  readonly looksLeft: number;
}

/** Checks the claims that this process has handed over, when they should have been taken. Uses one timer for each key. */
class ClaimWatch {
  readonly #claims = new Map<string, Claim>();
  readonly #context = new AsyncResource('SyncGuardClaimWatch');
  #isClosed = false;

  constructor(private readonly handOn: HandOn) {}

  watch(key: string, waiter: string, afterMs = CLAIM_MS, looksLeft = MOST_LOOKS): void {
    if (this.#isClosed || looksLeft === 0) return;
    const claim = { waiter, atMs: performance.now() + afterMs + GRACE_MS, looksLeft };
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
        if (next && !this.#claims.has(key)) this.watch(key, next.waiter, next.afterMs, claim.looksLeft - 1);
      },
      () => {}, // Redis cannot be reached. The waiters repeat their attempts by themselves, after longer pauses.
    );
  }
}
