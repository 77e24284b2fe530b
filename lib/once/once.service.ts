import { AsyncResource } from 'node:async_hooks';
import { Injectable, Logger, type OnModuleDestroy } from '@nestjs/common';
import { BackgroundRetries } from '../core/background-retries.js';
import { shownHash } from '../core/keys.js';
import { type Page, pageOf, pageOptions } from '../core/page.js';
import { randomId } from '../core/random-id.js';
import { settleWithin } from '../core/settle-within.js';
import {
  abortSignal,
  boolean,
  type CallOptions,
  callOptions,
  knownOptions,
  leavingAs,
  oneOf,
  userKey,
} from '../core/validate.js';
import { Watchdog } from '../core/watchdog.js';
import type { WaitingRoom } from '../core/waiting-room.js';
import { bodyBegins } from '../telemetry/body-runs.js';
import { type ByHand, byOf, tellForced } from '../telemetry/by-hand.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { type OnceFrame, onceFrames } from './current-once.js';
import { type ClaimReply, ONCE_STATES, type OnceBackend } from './once.backend.js';
import { fingerprintOf, OnceCodec } from './once.codec.js';
import { inProgress, invalidCall, OnceError, refusal, shuttingDown } from './once.errors.js';
import {
  ONCE_CALL,
  type OnceCall,
  type ResolvedOnceCall,
  type ResolvedOnceOptions,
  usualCall,
} from './once.options.js';
import { type OnceLoss, OnceRun } from './once.run.js';
import type {
  ForgetOnceResult,
  OnceContext,
  OnceListOptions,
  OnceOptions,
  OnceOutcome,
  OnceRecord,
  OnceResult,
  SettleOnceResult,
} from './once.types.js';
import { claimInTurn, claimOf, type SentClaim } from './once.wait.js';

const { checked, attributed } = leavingAs(OnceError.from);
const UNCLAIMED_FENCE = '0'.repeat(15);
/** The options of `run()` besides those that `@Once()` has too. */
const BESIDES = ['key', 'payload', 'signal'];

/** What a body runs under. While Redis is away it may be nothing, and then it promises nothing. */
export type BodyRun = Pick<OnceRun, 'context' | 'lost' | 'end'>;

type Done = Extract<ClaimReply, { status: 'done' }>;

/** What a call has come to: its own run, or the result of an earlier one. */
export type Entered = BodyRun | Done;

export interface OnceServiceConfig {
  readonly once: ResolvedOnceOptions;
  readonly shutdown: { readonly drainMs: number };
  readonly hashSecret?: string | undefined;
  readonly waitingRoom: WaitingRoom;
  readonly emit?: Emit | undefined;
}

/**
 * Answers a repeated call with the result of the first one. While a call runs, no other call with its key runs, in any
 * process. After its result is kept, none runs again until the record ends.
 *
 * @example
 * const { value, replayed } = await this.once.run(() => this.payments.charge(order), {
 *   key: `charge:${order.id}`,
 *   payload: { amount: order.amount },
 * });
 */
@Injectable()
export class OnceService implements OnModuleDestroy {
  readonly #logger = new Logger('SyncGuard');
  // What is private is not shown by `util.inspect`.
  readonly #backend: OnceBackend;
  readonly #config: OnceServiceConfig;
  /** @internal */
  readonly codec: OnceCodec;
  readonly #retries = new BackgroundRetries();
  readonly #usual: ResolvedOnceCall;
  readonly #resolved = new WeakMap<object, ResolvedOnceCall>();
  /** @internal */
  readonly watchdog = new Watchdog<OnceRun>();
  /** How many calls claim their key, or run. A shutdown waits for them. */
  #open = 0;
  #onNoneOpen: (() => void) | undefined;
  readonly #closing = new AbortController();

  /** @internal The module creates the service. */
  constructor(backend: OnceBackend, config: OnceServiceConfig) {
    this.#backend = backend;
    this.#config = config;
    this.codec = new OnceCodec(config.once, (line) => this.#logger.warn(line));
    this.#usual = usualCall(config.once);
    if (config.once.onError === 'run')
      this.#logger.warn(
        'ONCE_RUNS_UNGUARDED: With `once.onError: "run"` a call may run twice while Redis does not answer.',
      );
  }

  /** @internal */
  get backend(): OnceBackend {
    return this.#backend;
  }

  /** @internal */
  get options(): ResolvedOnceOptions {
    return this.#config.once;
  }

  /**
   * Runs a body, unless a call with the same key has run: then its result is returned.
   *
   * @throws what the body throws, unchanged
   * @throws OnceError OnceInProgress, OncePayloadMismatch, OutcomeUnknown, ResultNotKept, OnceLost, and faults of Redis
   */
  run<T>(fn: (context: OnceContext) => T | Promise<T>, options: OnceOptions<T>): Promise<OnceResult<T>> {
    try {
      if (typeof fn !== 'function') throw invalidCall('fn must be a function.');
      const resolved = ONCE_CALL.resolve('options', options ?? null, this.#usual, BESIDES);
      const { key, payload, signal } = options;
      if (signal !== undefined) abortSignal('signal', signal);
      return this.runCall(fn, this.callOf(key, payload, resolved, signal));
    } catch (error) {
      return Promise.reject(OnceError.from(error));
    }
  }

  /** @internal The same for a call whose options were checked. */
  async runCall<T>(fn: (context: OnceContext) => T | Promise<T>, call: OnceCall): Promise<OnceResult<T>> {
    const { key } = call;
    const entered = await this.enter(call);
    if ('status' in entered) {
      const { attempt, atMs, kept } = entered;
      return {
        value: (await this.codec.valueOf(key, kept)) as T,
        replayed: true,
        attempt,
        completedAtMs: atMs,
      };
    }
    const tell = this.bodyBegins(key);
    const outcome = await outcomeOf(entered.context, fn);
    const hasFailed = 'error' in outcome;
    tell?.(hasFailed);
    const isKept = this.keeps(call, outcome, !hasFailed);
    const kept = isKept ? this.codec.kept(key, outcome) : undefined;
    const ended = entered.end(kept ? { kept: kept instanceof Promise ? await kept : kept } : 'failed');
    if (hasFailed) {
      await ended.catch(() => {}); // What the body has thrown is more than that its key was lost.
      throw outcome.error;
    }
    const { attempt } = entered.context;
    return { value: outcome.value, replayed: false, attempt, completedAtMs: await ended };
  }

  /**
   * Returns what is known of a key, or null.
   *
   * @throws OnceError, as for all faults of Redis
   */
  async get(key: string, options: CallOptions = {}): Promise<OnceRecord | null> {
    const [checkedKey, given] = checked(() => [userKey(key), callOptions(options, [])]);
    return attributed(this.#backend.get(checkedKey, given));
  }

  /**
   * Lists what is known of keys, page by page. On Redis it walks over all keys of the server, those of other programs too, at most
   * 5,000 a second in each process.
   *
   * @example for (const { key } of (await once.list({ state: 'unknown' })).items) console.log(key);
   */
  async list(options: OnceListOptions = {}): Promise<Page<OnceRecord>> {
    const { page, state } = checked(() => ({
      page: pageOptions(options, ['state']),
      state: options.state === undefined ? undefined : oneOf('state', options.state, ONCE_STATES),
    }));
    const { items, cursor } = await attributed(this.#backend.list(page));
    return pageOf(
      items.filter((each) => (state ?? each.state) === each.state),
      cursor,
    );
  }

  /**
   * Stores by hand what an unknown outcome was. Later calls with the key get the value. Over HTTP they get it as JSON with 200.
   * Refused while the call runs, and if its result is kept.
   */
  async settle(
    key: string,
    outcome: { value: unknown },
    options: CallOptions & ByHand = {},
  ): Promise<SettleOnceResult> {
    const [checkedKey, given, by] = checked(() => {
      if (!('value' in knownOptions('outcome', outcome ?? null, ['value'])))
        throw invalidCall('settle() needs a value.');
      return [userKey(key), callOptions(options, ['by']), byOf(options)];
    });
    const kept = await this.codec.kept(checkedKey, outcome);
    const result = await attributed(
      this.#backend.settle({ key: checkedKey, nonce: randomId() }, kept, given),
    );
    if (result.ok) this.#tellForced('settle', checkedKey, by);
    return result;
  }

  /**
   * Deletes what is known of a key, a kept result too, so that the next call runs. To decide about an unknown outcome only, ask
   * `get()` for its state first.
   *
   * @param options.force - also while a call runs, which then loses the key. Default: false.
   */
  async forget(
    key: string,
    options: CallOptions & ByHand & { force?: boolean } = {},
  ): Promise<ForgetOnceResult> {
    const [checkedKey, { force = false, signal }, by] = checked(() => [
      userKey(key),
      callOptions(options, ['force', 'by']),
      byOf(options),
    ]);
    checked(() => boolean('force', force));
    const result = await attributed(this.#backend.forget(checkedKey, force, { signal }));
    if (result.ok) this.#tellForced('forget', checkedKey, by);
    return result;
  }

  /** @internal Returns the options of a decorator with all defaults. */
  resolved(options: object, place: string): ResolvedOnceCall {
    let resolved = this.#resolved.get(options);
    if (!resolved) this.#resolved.set(options, (resolved = ONCE_CALL.resolve(place, options, this.#usual)));
    return resolved;
  }

  /** @internal Returns a call after the check of its key. Another one is compared with the hash of its payload. */
  callOf(key: string, payload: unknown, options: ResolvedOnceCall, signal?: AbortSignal): OnceCall {
    const { hashSecret } = this.#config;
    return checked(() => ({ key: userKey(key), print: fingerprintOf(payload, hashSecret), signal, options }));
  }

  /**
   * @internal Claims the key of a call, and waits for it as long as the call says. Whoever gets a run ends it, and a shutdown
   * waits for that.
   */
  async enter(call: OnceCall): Promise<Entered> {
    const { signal: closing } = this.#closing;
    if (closing.aborted) throw shuttingDown();
    const { waitingRoom: room, emit } = this.#config;
    let run: BodyRun | undefined;
    this.#open++;
    try {
      let claim: SentClaim;
      let reply: ClaimReply;
      if (call.options.waitMs === 0 || room.isFull || room.isFullFor([call.key]))
        reply = await this.#backend.claim((claim = claimOf(call)), call);
      else ({ claim, reply } = await claimInTurn(this.#backend, room, call, closing));
      if (reply.status === 'done') return reply;
      if (reply.status !== 'claimed') throw refusalOf(call.key, reply);
      // The watchdog finds the loss, in no async context. `AsyncResource.bind` would take longer than the call.
      const context = emit && new AsyncResource('SyncGuardOnce');
      const onLost =
        context && ((loss: OnceLoss) => context.runInAsyncScope(() => this.#emit('lost', call.key, loss)));
      run = new OnceRun(this, call.options, claim, reply, onLost);
      // A claim whose answer came after its lease, or after the shutdown began, is taken back: another call may run by now.
      const refusal = closing.aborted ? shuttingDown() : run.lost;
      if (!refusal) return run;
      await run.end('nothing').catch(() => {});
      throw refusal;
    } catch (error) {
      const fault = OnceError.from(error);
      const isAway = fault.code === 'ServiceUnavailable' || fault.code === 'NetworkTimeout';
      if (call.options.onError !== 'run' || !isAway || closing.aborted) throw fault;
      return (run = this.#unguarded(call));
    } finally {
      if (!run) this.onOver();
    }
  }

  #unguarded(call: OnceCall): BodyRun {
    const { signal } = new AbortController();
    return {
      context: { key: call.key, attempt: 1, fence: UNCLAIMED_FENCE, signal },
      lost: undefined,
      end: async () => (this.onOver(), Date.now()),
    };
  }

  /** @internal Asks `keep`. If it throws, what is kept by default is. */
  keeps({ options: { keep } }: OnceCall, outcome: OnceOutcome, byDefault: boolean): boolean {
    try {
      return keep ? keep(outcome) === true : byDefault;
    } catch (error) {
      this.#logger.error('ONCE_KEEP_THREW: A function `keep` has thrown, so its default counts.', error);
      return byDefault;
    }
  }

  /** @internal Called when a body begins. Returns what is to be called at its end, if anybody listens. */
  bodyBegins(key: string): ReturnType<typeof bodyBegins> {
    return bodyBegins(this.#config.emit, 'once', key);
  }

  /** @internal A run tells it. */
  onOver(): void {
    if (--this.#open === 0) this.#onNoneOpen?.();
  }

  /** @internal A run tells it. */
  endLater(key: string, end: () => Promise<number>, fault: unknown): void {
    const { code, message } = OnceError.from(fault);
    this.#emit('uncertain', key, code);
    this.#logger.warn(
      `ONCE_UNCERTAIN: The end of ${shownHash(key)} could not be stored yet. SyncGuard tries again until it is. ${message}`,
    );
    this.#retries.start(() => end().then(() => true), Infinity, fault);
  }

  /** Nest calls this first at a shutdown. New calls are refused, and those that run may end within `shutdown.drainMs`. */
  async onModuleDestroy(): Promise<void> {
    this.#closing.abort();
    const noneOpen = new Promise<void>((resolve) => (this.#onNoneOpen = resolve));
    if (this.#open > 0) await settleWithin(this.#config.shutdown.drainMs, [noneOpen]);
    await this.#retries.flush();
  }

  #tellForced(operation: 'settle' | 'forget', key: string, by: string | undefined): void {
    const { emit } = this.#config;
    tellForced({ feature: 'once', operation, key, by }, (line) => this.#logger.warn(line), emit);
  }

  #emit(type: 'lost' | 'uncertain', key: string, reason: string): void {
    this.#config.emit?.({ feature: 'once', type, result: 'fail', reason, key, durationMs: 0 });
  }
}

/** Runs a body under its run. Never rejects. */
async function outcomeOf<T>(
  context: OnceContext,
  fn: (context: OnceContext) => T | Promise<T>,
): Promise<OnceOutcome<T>> {
  const frame: OnceFrame = { context, outer: onceFrames.find(), active: true };
  try {
    return { value: await onceFrames.run(frame, () => fn(context)) };
  } catch (error) {
    return { error };
  } finally {
    frame.active = false;
  }
}

function refusalOf(key: string, reply: Exclude<ClaimReply, { status: 'claimed' | 'done' }>): OnceError {
  if (reply.status === 'busy') return inProgress(key, reply.remainingMs, reply.ranForMs);
  return refusal(reply.status === 'mismatch' ? 'OncePayloadMismatch' : 'OutcomeUnknown', key);
}
