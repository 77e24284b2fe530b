import { Logger } from '@nestjs/common';
import { SyncGuardConfigError } from '../core/errors.js';
import { hashKey } from '../core/keys.js';
import { describe, isPlainKey } from '../core/validate.js';
import { warningOnce } from '../core/warn-once.js';
import type { AbuseLimiterService } from './abuse-limiter.service.js';
import { identityIn } from './limit.identity.js';
import {
  MAX_COUNTED,
  MAX_LIMIT_MS,
  type ResolvedPolicy,
  resolvePolicy,
  shortWindowWarning,
} from './limit.policy.js';
import type { LimitPolicy } from './policy.types.js';
import { Remembered } from './remembered.js';

/** What the guard of `@nestjs/throttler` is told about a call. Times in whole seconds, rounded up. */
export interface ThrottlerRecord {
  /** The calls of the window, with this one. Of a denied call: one more than the limit. */
  totalHits: number;
  /** How long until the window ends. */
  timeToExpire: number;
  /** Whether the key is blocked, so that the call is refused. */
  isBlocked: boolean;
  /** How long until a call is let in again. 0 if this one is. */
  timeToBlockExpire: number;
}

/** Policies are made of what the guard passes, which may differ from call to call. The oldest is made again when it is needed. */
const MAX_POLICIES = 1_000;
/** How many of them have a script of their own, which is faster. An app whose limits are numbers has fewer. */
const MAX_SCRIPTS = 64;

/**
 * A storage for `@nestjs/throttler` 6: its guard and decorators stay, and calls are counted by the limiter, exactly and for all
 * processes, on Redis or in memory (docs/migration/throttler.md).
 *
 * The limiter counts in fixed windows. A block begins with the first call that is denied, and further calls do not renew it.
 * While Redis does not answer, each process counts by itself. A `limit` of 0 and a `ttl` of 0 deny every call, and a `limit` of
 * Infinity lets every call in.
 *
 * @example
 * ThrottlerModule.forRootAsync({
 *   inject: [AbuseLimiterService],
 *   useFactory: (limiter: AbuseLimiterService) => ({
 *     throttlers: [{ limit: 10, ttl: seconds(60) }],
 *     storage: new SyncGuardThrottlerStorage(limiter),
 *   }),
 * })
 */
export class SyncGuardThrottlerStorage {
  readonly #limiter: AbuseLimiterService;
  readonly #policies = new Remembered<ResolvedPolicy>(MAX_POLICIES);
  readonly #warnOnce = warningOnce((message) => new Logger('SyncGuard').warn(message));
  #scripts = 0;

  /** @throws SyncGuardConfigError if `inject: [AbuseLimiterService]` is missing */
  constructor(limiter: AbuseLimiterService) {
    if (typeof limiter?.decisions?.decide !== 'function')
      throw new SyncGuardConfigError(
        `SyncGuardThrottlerStorage needs the AbuseLimiterService, got ${describe(limiter)}.`,
        { hint: 'Write `inject: [AbuseLimiterService], useFactory: (limiter) => ...` in `forRootAsync`.' },
      );
    this.#limiter = limiter;
  }

  /**
   * Counts a call. The guard of `@nestjs/throttler` calls it.
   *
   * @param ttl - the window, in ms
   * @param blockDuration - how long the first call too many blocks the key, in ms. 0: until the window ends.
   * @throws SyncGuardConfigError if the arguments are those of a version below 6
   */
  async increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<ThrottlerRecord> {
    if (!isNumber(ttl) || !isNumber(limit)) throw ofAnotherVersion(ttl, limit);
    const blockMs = Math.max(0, blockDuration || 0);
    if (limit < 1 || ttl <= 0) return denied(0, Math.max(1, toSecs(blockMs || ttl)));
    if (limit === Infinity) return { ...FREE, timeToExpire: toSecs(ttl) };
    const policy = this.#policyOf(throttlerName, limit, ttl, blockMs);
    const identity = identityIn(policy.name, isPlainKey(key) ? key : hashKey(String(key)));
    const { decision } = await this.#limiter.decisions.decide([{ policy, identity, cost: 1 }]);
    if (!decision.allowed) return denied(limit, decision.retryAfterSecs);
    return { ...FREE, totalHits: decision.shortCount, timeToExpire: toSecs(decision.resetMs) };
  }

  #policyOf(name: string, limit: number, ttl: number, blockMs: number): ResolvedPolicy {
    const id = `${limit} ${ttl} ${blockMs} ${name}`;
    const known = this.#policies.get(id);
    if (known) return known;
    const given: LimitPolicy = {
      name: `throttler:${NAME.test(name) ? name : hashKey(String(name))}`,
      algorithm: 'fixed-window',
      limit: Math.min(Math.floor(limit), MAX_COUNTED),
      windowMs: toMs(ttl),
      onError: 'memory',
    };
    if (blockMs > 0) given.blockMs = toMs(blockMs);
    const policy = resolvePolicy(given, { isStatic: this.#scripts++ < MAX_SCRIPTS });
    const warning = shortWindowWarning([policy]);
    if (warning) this.#warnOnce(warning);
    this.#policies.set(id, policy);
    return policy;
  }
}

/** What may follow the prefix in the name of a policy. */
const NAME = /^[\x20-\x7e]{1,180}$/;

const FREE: ThrottlerRecord = { totalHits: 0, timeToExpire: 0, isBlocked: false, timeToBlockExpire: 0 };

const denied = (limit: number, secs: number): ThrottlerRecord => ({
  totalHits: Math.max(0, Math.floor(limit)) + 1,
  timeToExpire: secs,
  isBlocked: true,
  timeToBlockExpire: secs,
});

const isNumber = (value: unknown): value is number => typeof value === 'number' && !Number.isNaN(value);

const toMs = (ms: number): number => Math.min(Math.ceil(ms), MAX_LIMIT_MS);

const toSecs = (ms: number): number => Math.ceil(Math.max(0, Math.min(ms, MAX_LIMIT_MS)) / 1000);

const ofAnotherVersion = (ttl: unknown, limit: unknown): SyncGuardConfigError =>
  new SyncGuardConfigError(
    `SyncGuardThrottlerStorage got a ttl of ${describe(ttl)} and a limit of ${describe(limit)}.`,
    { hint: 'It needs @nestjs/throttler 6, whose guard passes numbers to the storage.' },
  );
