import { type Clock, systemClock } from '../../core/clock.js';
import { IdleSweep } from '../../core/idle-sweep.js';
import { type Page, pageOf, pageOfNames, type ResolvedPageOptions } from '../../core/page.js';
import { type CallOptions, refuseAborted } from '../../core/validate.js';
import { EndListeners } from '../end-listeners.js';
import type { Claim, Claimed, ClaimReply, Kept, OnceBackend, OnceEnd } from '../once.backend.js';
import { OnceError } from '../once.errors.js';
import { TURN_MS } from '../once.times.js';
import type { AfterCrash, ForgetOnceResult, OnceRecord, SettleOnceResult } from '../once.types.js';

/** A record, with the fields of the one in Redis. */
interface Entry {
  state: 'running' | 'done' | 'failed';
  nonce: string;
  fence: number;
  attempt: number;
  startedMs: number;
  /** While it runs the end of its lease, else when it ended. */
  atMs: number;
  keepMs: number;
  readonly afterCrash: AfterCrash;
  readonly print: string;
  kept: Kept | undefined;
  waiters: readonly { readonly id: string; readonly untilMs: number }[];
}

/** Runs in the memory of one process, with the behaviour of the Redis backend. */
export class MemoryOnceBackend implements OnceBackend {
  /** Every waiter of this process is told, so it need not look by itself. */
  readonly pollMs = 1_000;
  private readonly entries = new Map<string, Entry>();
  readonly #listeners = new EndListeners();
  readonly #sweep = new IdleSweep(() => this.#drop());

  constructor(private readonly clock: Clock = systemClock) {}

  async claim(claim: Claim, { signal }: CallOptions): Promise<ClaimReply> {
    refuseAborted(signal, OnceError);
    const { key, nonce, print, leaseMs, keepMs, afterCrash } = claim;
    const nowMs = this.clock.now();
    let entry = this.#find(key);
    if (entry) {
      const refused = this.#refusalOf(entry, claim, nowMs);
      if (refused) return refused;
      entry.waiters = waiting(entry, nowMs).filter(({ id }) => id !== claim.waiter);
    } else {
      this.#sweep.grow(this.entries.size);
      const none = { state: 'running', nonce, fence: 0, attempt: 0, startedMs: 0, atMs: 0, keepMs } as const;
      entry = { ...none, afterCrash, print, kept: undefined, waiters: [] };
      this.entries.set(key, entry);
    }
    entry.state = 'running';
    entry.nonce = nonce;
    entry.attempt++;
    entry.fence = Math.max(entry.fence + 1, nowMs * 10);
    entry.startedMs = nowMs;
    entry.atMs = nowMs + leaseMs;
    entry.keepMs = keepMs;
    return claimed(entry);
  }

  async renew({ key, nonce }: Claimed, leaseMs: number): Promise<boolean> {
    const entry = this.#find(key);
    if (entry?.nonce !== nonce || entry.state !== 'running') return false;
    entry.atMs = Math.max(this.clock.now() + leaseMs, entry.atMs);
    return true;
  }

  async end({ key, nonce }: Claimed, end: OnceEnd): Promise<number> {
    const nowMs = this.clock.now();
    const entry = this.#find(key);
    if (!entry && end === 'nothing') return nowMs;
    if (entry?.nonce !== nonce) return 0;
    if (entry.state !== 'running') return entry.atMs;
    if (end === 'nothing' && entry.attempt-- === 1) this.entries.delete(key);
    entry.state = typeof end === 'object' ? 'done' : 'failed';
    entry.atMs = nowMs;
    if (typeof end === 'object') entry.kept = end.kept;
    this.#listeners.tell(key);
    return nowMs;
  }

  async get(key: string, { signal }: CallOptions): Promise<OnceRecord | null> {
    refuseAborted(signal, OnceError);
    const entry = this.#find(key);
    if (!entry) return null;
    const { attempt, startedMs: startedAtMs, atMs, keepMs, afterCrash } = entry;
    const lapsed = afterCrash === 'refuse' ? 'unknown' : 'failed';
    const state = entry.state === 'running' && !this.#isLive(entry) ? lapsed : entry.state;
    return { key, state, attempt, startedAtMs, expiresAtMs: atMs + keepMs };
  }

  async list(page: ResolvedPageOptions): Promise<Page<OnceRecord>> {
    refuseAborted(page.signal, OnceError);
    const { names, cursor } = pageOfNames(this.entries.keys(), page);
    const found = await Promise.all(names.map((key) => this.get(key, {})));
    return pageOf(
      found.filter((each) => each !== null),
      cursor,
    );
  }

  async settle({ key, nonce }: Claimed, kept: Kept, { signal }: CallOptions): Promise<SettleOnceResult> {
    refuseAborted(signal, OnceError);
    const entry = this.#find(key);
    if (!entry) return { ok: false, reason: 'not_found' };
    if (entry.state === 'done')
      return entry.nonce === nonce ? { ok: true } : { ok: false, reason: 'already_done' };
    if (this.#isLive(entry)) return { ok: false, reason: 'running' };
    Object.assign(entry, { state: 'done', nonce, atMs: this.clock.now(), kept });
    this.#listeners.tell(key);
    return { ok: true };
  }

  async forget(key: string, force: boolean, { signal }: CallOptions): Promise<ForgetOnceResult> {
    refuseAborted(signal, OnceError);
    const entry = this.#find(key);
    if (entry && this.#isLive(entry) && !force) return { ok: false, reason: 'running' };
    this.entries.delete(key);
    this.#listeners.tell(key);
    return { ok: true };
  }

  onEnd(key: string, listener: () => void): () => void {
    return this.#listeners.add(key, listener);
  }

  /** Returns why a call neither runs nor is new, and lets it wait. */
  #refusalOf(entry: Entry, { nonce, print, waiter, waitMs }: Claim, nowMs: number): ClaimReply | undefined {
    const { state, attempt, atMs, kept } = entry;
    const isLive = this.#isLive(entry);
    if (state === 'running' && entry.nonce === nonce) return claimed(entry);
    if (entry.print !== print) return { status: 'mismatch' };
    if (state === 'done') return { status: 'done', attempt, atMs, kept: kept as Kept };
    if (state === 'running' && !isLive && entry.afterCrash === 'refuse') return { status: 'unknown' };
    const list = waiting(entry, nowMs);
    const found = list.findIndex(({ id }) => id === waiter);
    const turnMs = isLive ? atMs : atMs + (found < 0 ? list.length : found) * TURN_MS;
    if (nowMs >= turnMs) return undefined;
    if (waitMs > 0 && found < 0) entry.waiters = [...list, { id: waiter, untilMs: nowMs + waitMs }];
    return { status: 'busy', remainingMs: turnMs - nowMs, ranForMs: nowMs - entry.startedMs };
  }

  #isLive({ state, atMs }: Entry): boolean {
    return state === 'running' && atMs > this.clock.now();
  }

  #find(key: string): Entry | undefined {
    const entry = this.entries.get(key);
    if (!entry || this.clock.now() < entry.atMs + entry.keepMs) return entry;
    this.entries.delete(key);
    return undefined;
  }

  #drop(): number {
    for (const key of this.entries.keys()) this.#find(key);
    return this.entries.size;
  }
}

const claimed = ({ attempt, fence }: Entry): ClaimReply => ({
  ...{ status: 'claimed', attempt, fence: String(fence).padStart(15, '0') },
});

const waiting = ({ waiters }: Entry, nowMs: number): Entry['waiters'] =>
  waiters.filter(({ untilMs }) => untilMs > nowMs);
