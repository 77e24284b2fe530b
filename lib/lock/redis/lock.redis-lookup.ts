import { isLive, TIME_TOLERANCE_MS } from '../../core/clock.js';
import { type Page, pageOf } from '../../core/page.js';
import type { CallOptions } from '../../core/validate.js';
import { unlessForeign } from '../../redis/redis.errors.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import { escapeGlob, walk } from '../../script/walk.js';
import { LockError } from '../lock.errors.js';
import { randomId } from '../../core/random-id.js';
import { type KeyOrId, listedOf, LockLookups, type LockRecord } from '../lock.record.js';
import type { IsLockedOptions, ListedLock, LockListOptions, WaitingCall } from '../lock.types.js';
import { attributed, validateCall, validateIsLocked, validateKey, validateList } from '../lock.validate.js';
import {
  type ById,
  CLEANUP_AFTER_MS,
  cleanupScript,
  extendByIdScript,
  queueScript,
  readIndexScript,
  type ReadReply,
  readScript,
  releaseByIdScript,
} from './lock.by-id.scripts.js';
import { isOfRecord, LOCK_ID_LENGTH, type LockLayout, mayBeHashed } from './lock.layout.js';
import { ASIDE, PLAIN_FROM } from './lock.queue.fragments.js';
import type { ExtendReply, ReleaseCode } from './lock.replies.js';

type Signal = AbortSignal | undefined;

const PROCESS_LENGTH = 16;
const MOST_WAITERS = 1_000;

/**
 * The part of the backend on Redis for locks by a key, and for locks of which a caller knows nothing but the lockId. Nothing
 * is kept for what an operator sees: it is looked up when he asks.
 */
export abstract class RedisLockLookups extends LockLookups {
  constructor(
    protected readonly runner: ScriptRunner,
    protected readonly layout: LockLayout,
    private readonly cleanupInIsLocked: boolean,
  ) {
    super();
  }

  async isLocked(options: IsLockedOptions): Promise<boolean> {
    const key = validateIsLocked(options);
    const read = await this.#read(key, options.signal);
    if (!read) return false;
    const { record, nowMs } = read;
    if (isLive(record.expiresAtMs, nowMs, TIME_TOLERANCE_MS)) return true;
    if (this.cleanupInIsLocked && !isLive(record.expiresAtMs, nowMs, CLEANUP_AFTER_MS))
      this.#cleanup(key, record);
    return false;
  }

  list(options?: LockListOptions): Promise<Page<ListedLock>> {
    return attributed(this.#list(options));
  }

  async waiters(key: string, options: CallOptions = {}): Promise<WaitingCall[]> {
    const queue = this.#queueOf(validateKey(key));
    const { signal } = validateCall(options);
    const asked = this.runner.run(queueScript, { queue }, { most: MOST_WAITERS }, { signal });
    const { first } = await attributed(asked);
    return first.map(({ waiter, ticket }, i) => ({
      position: i + 1,
      process: waiter.slice(LOCK_ID_LENGTH, LOCK_ID_LENGTH + PROCESS_LENGTH),
      sinceMs: waitsSinceMs(ticket),
    }));
  }

  protected override async find(wanted: KeyOrId, signal: Signal): Promise<LockRecord | null> {
    if ('key' in wanted) return liveRecord(await this.#read(wanted.key, signal));
    const { lockId } = wanted;
    const read = await this.#byId<ReadReply | null>(lockId, signal, null, ({ record, index }, options) =>
      this.runner.run(readScript, { record }, { isIndex: record === index ? '1' : '' }, options),
    );
    return read?.record.lockId === lockId ? liveRecord(read) : null;
  }

  /** Releases a lock, or returns the keys of one that has waiters or several keys: all of them must be declared. */
  protected releaseFound(lockId: string, signal: Signal): Promise<ById<ReleaseCode>> {
    const mark = this.layout.markOf(lockId);
    const args = { lockId, nonce: randomId() };
    return this.#byId<ById<ReleaseCode>>(lockId, signal, 'not_found', (keys, options) =>
      this.runner.run(releaseByIdScript, { ...keys, mark }, args, options),
    );
  }

  /** Extends a lock, or returns its keys as `releaseFound` does. */
  protected extendFound(lockId: string, ttlMs: number, signal: Signal): Promise<ById<ExtendReply>> {
    return this.#byId<ById<ExtendReply>>(lockId, signal, { code: 'not_found' }, (keys, options) =>
      this.runner.run(extendByIdScript, keys, { lockId, ttlMs }, options),
    );
  }

  /**
   * Runs a script for a lock of which only the lockId is known. In the spec layout the script reads the index itself.
   * In the slotted layout the index is read first, since a Cluster needs the names of all keys before.
   */
  async #byId<Result>(
    lockId: string,
    signal: Signal,
    none: Result,
    run: (keys: { index: string; record: string }, options: RunOptions<Result>) => Promise<Result>,
  ): Promise<Result> {
    const index = this.layout.indexOf(lockId);
    try {
      if (!this.layout.recordFromIndex) return await run({ index, record: index }, { signal });
      const endMs = performance.now() + this.runner.commandTimeoutMs;
      const name = await this.runner.run(readIndexScript, { index }, {}, { signal });
      if (name === null) return none;
      // Both round trips share one deadline.
      const timeoutMs = Math.max(1, endMs - performance.now());
      return await run({ index, record: this.layout.recordFromIndex(name) }, { signal, timeoutMs });
    } catch (fault) {
      throw LockError.from(fault, { lockId });
    }
  }

  async #list(options?: LockListOptions): Promise<Page<ListedLock>> {
    const { prefix, ...page } = validateList(options);
    const begin = this.layout.recordsBegin;
    const pattern = `${begin.pattern}${mayBeHashed(prefix) ? '' : escapeGlob(prefix)}*`;
    const { names, cursor } = await walk(this.runner, pattern, page);
    const records = names.filter((name) => isOfRecord(name.slice(begin.length)));
    const found = await Promise.all(records.map((record) => this.#listed(record, prefix, page)));
    return pageOf(found.flat(), cursor);
  }

  /** Returns the lock of a record, or nothing: it may have ended meanwhile, and a name like ours may be another program's. */
  async #listed(name: string, prefix: string, { signal }: CallOptions): Promise<ListedLock[]> {
    const read = await this.runner
      .run(readScript, { record: name }, { isIndex: '' }, { signal })
      .catch(unlessForeign);
    if (!read || !isLive(read.record.expiresAtMs, read.nowMs, TIME_TOLERANCE_MS)) return [];
    const { key } = read.record;
    if (!key.startsWith(prefix)) return [];
    const queue = this.#queueOf(key);
    const { waiting } = await this.runner.run(queueScript, { queue }, { most: 0 }, { signal });
    return [listedOf(read.record, waiting)];
  }

  #queueOf(key: string): string {
    return this.layout.keysOf([key], this.layout.createLockId([key])).queue;
  }

  #read(key: string, signal: Signal): Promise<ReadReply | null> {
    return this.runner
      .run(readScript, { record: this.layout.recordOf(key) }, { isIndex: '' }, { signal })
      .catch((fault: unknown) => {
        throw LockError.from(fault, { keys: [key] });
      });
  }

  #cleanup(key: string, { lockId }: LockRecord): void {
    const { record, index } = this.layout.keysOf([key], lockId);
    // A failure does no harm: the next call tries again, and the TTL of the record ends it anyway.
    this.runner.run(cleanupScript, { record, index }, { lockId }).catch(() => {});
  }
}

const liveRecord = (read: ReadReply | null): LockRecord | null =>
  read && isLive(read.record.expiresAtMs, read.nowMs, TIME_TOLERANCE_MS) ? read.record : null;

/** Returns when the call of a ticket began to wait, in ms. */
function waitsSinceMs(ticket: number): number {
  const atUs = ticket >= ASIDE ? ticket - ASIDE : ticket;
  return Math.floor((atUs < PLAIN_FROM ? 2 * atUs : atUs) / 1_000);
}
