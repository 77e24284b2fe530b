import { isLive, TIME_TOLERANCE_MS } from '../../core/clock.js';
import { type Page, pageOf } from '../../core/page.js';
import type { CallOptions } from '../../core/validate.js';
import { unlessForeign } from '../../redis/redis.errors.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { escapeGlob, walk } from '../../script/walk.js';
import { listedOf } from '../lock.record.js';
import type { ListedLock, LockListOptions, WaitingCall } from '../lock.types.js';
import { validateList } from '../lock.validate.js';
import { queueScript, readScript } from './lock.by-id.scripts.js';
import { ASIDE, PLAIN_FROM } from './lock.queue.fragments.js';
import { isOfRecord, type LockLayout, mayBeHashed } from './lock.layout.js';

const LOCK_ID_LENGTH = 22;
const PROCESS_LENGTH = 16;
const MOST_WAITERS = 1_000;

/** What an operator sees of the locks on Redis. Nothing is kept for it: it is looked up when he asks. */
export class RedisLockViews {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly layout: LockLayout,
  ) {}

  async list(options?: LockListOptions): Promise<Page<ListedLock>> {
    const { prefix, ...page } = validateList(options);
    const begin = this.layout.recordsBegin;
    const pattern = `${begin.pattern}${mayBeHashed(prefix) ? '' : escapeGlob(prefix)}*`;
    const { names, cursor } = await walk(this.runner, pattern, page);
    const records = names.filter((name) => isOfRecord(name.slice(begin.length)));
    const found = await Promise.all(records.map((record) => this.#listed(record, prefix, page)));
    return pageOf(found.flat(), cursor);
  }

  async waiters(key: string, { signal }: CallOptions): Promise<WaitingCall[]> {
    const queue = this.#queueOf(key);
    const { first } = await this.runner.run(queueScript, { queue }, { most: MOST_WAITERS }, { signal });
    return first.map(({ waiter, ticket }, i) => ({
      position: i + 1,
      process: waiter.slice(LOCK_ID_LENGTH, LOCK_ID_LENGTH + PROCESS_LENGTH),
      sinceMs: waitsSinceMs(ticket),
    }));
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
}

/** Returns when the call of a ticket began to wait, in ms. */
function waitsSinceMs(ticket: number): number {
  const atUs = ticket >= ASIDE ? ticket - ASIDE : ticket;
  return Math.floor((atUs < PLAIN_FROM ? 2 * atUs : atUs) / 1_000);
}
