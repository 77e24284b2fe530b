import { randomUUID } from 'node:crypto';
import { Injectable, Logger, type OnModuleDestroy } from '@nestjs/common';
import { BackgroundRetries } from '../core/background-retries.js';
import { shownHash } from '../core/keys.js';
import { type Page, pageOf } from '../core/page.js';
import { settleWithin } from '../core/settle-within.js';
import {
  abortSignal,
  boolean,
  type CallOptions,
  callOptions,
  knownOptions,
  leavingAs,
  userKey,
} from '../core/validate.js';
import type { WaitingRoom } from '../core/waiting-room.js';
import { bodyBegins } from '../telemetry/body-runs.js';
import { type ByHand, byOf, tellForced } from '../telemetry/by-hand.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { type OnceFrame, onceFrames } from './current-once.js';
import { validateList } from './once.validate.js';
import type { ClaimReply, Kept, OnceBackend } from './once.backend.js';
import { type Answer, fingerprintOf, OnceCodec } from './once.codec.js';
import {
  inProgress,
  invalidCall,
  mismatch,
  notKept,
  OnceError,
  outcomeUnknown,
  shuttingDown,
} from './once.errors.js';
import {
  type OnceCall,
  type ResolvedOnceCall,
  type ResolvedOnceOptions,
  resolveOnceCall,
} from './once.options.js';
import { OnceRun } from './once.run.js';
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
import { claimOf } from './once.wait.js';

const { checked, attributed } = leavingAs(OnceError.from);
const NOTHING = Buffer.alloc(0);
const UNCLAIMED_FENCE = '0'.repeat(15);

/** What a body runs under. While Redis is away it may be nothing, and then it promises nothing. */
export type BodyRun = Pick<OnceRun, 'context' | 'lost' | 'end'>;

/** What a call has come to: its own run, or the result of an earlier one. */
export type Entered =
  { readonly run: BodyRun } | { readonly replay: Extract<ClaimReply, { status: 'done' }> };

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
  readonly #resolved = new WeakMap<object, ResolvedOnceCall>();
  /** The calls that claim their key, and those that run. A shutdown waits for them. */
  readonly #open = new Set<OnceCall>();
  #onNoneOpen: (() => void) | undefined;
  readonly #closing = new AbortController();

  /** @internal The module creates the service. */
  constructor(backend: OnceBackend, config: OnceServiceConfig) {
    this.#backend = backend;
    this.#config = config;
    this.codec = new OnceCodec(config.once);
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
  async run<T>(
    fn: (context: OnceContext) => T | Promise<T>,
    options: OnceOptions<T>,
  ): Promise<OnceResult<T>> {
    const call = checked(() => {
      if (typeof fn !== 'function') throw invalidCall('fn must be a function.');
      const resolved = resolveOnceCall(options ?? null, this.options, ['key', 'payload', 'signal']);
      const { key, payload, signal } = options;
      if (signal !== undefined) abortSignal('signal', signal);
      return { key: userKey(key), print: this.fingerprint(payload), signal, options: resolved };
    });
    return this.runCall(fn, call);
  }

  /** @internal The same for a call whose options were checked. */
  async runCall<T>(fn: (context: OnceContext) => T | Promise<T>, call: OnceCall): Promise<OnceResult<T>> {
    const entered = await this.enter(call);
    if ('replay' in entered) {
      const { attempt, atMs, kept } = entered.replay;
      const value = (await this.valueOf(call.key, kept)) as T;
      return { value, replayed: true, attempt, completedAtMs: atMs };
    }
    const { run } = entered;
    const tell = this.bodyBegins(call.key);
    const outcome = await bodyOf(run.context, fn);
    tell?.('error' in outcome);
    const ended = this.#end(run, call, outcome);
    if ('error' in outcome) {
      await ended.catch(() => {}); // What the body has thrown is more than that its key was lost.
      throw outcome.error;
    }
    const { attempt } = run.context;
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
    const { page, state } = checked(() => validateList(options));
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
    const [checkedKey, given] = checked(() => {
      if (!('value' in knownOptions('outcome', outcome ?? null, ['value'])))
        throw invalidCall('settle() needs a value.');
      return [userKey(key), callOptions(options, ['by'])];
    });
    const by = checked(() => byOf(given));
    const kept = await this.kept(checkedKey, 'value', () => this.codec.pack(outcome.value));
    const result = await attributed(
      this.#backend.settle({ key: checkedKey, nonce: randomUUID() }, kept, given),
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
    const [checkedKey, { force = false, signal, ...who }] = checked(() => [
      userKey(key),
      callOptions(options, ['force', 'by']),
    ]);
    const by = checked(() => (boolean('force', force), byOf(who)));
    const result = await attributed(this.#backend.forget(checkedKey, force, { signal }));
    if (result.ok) this.#tellForced('forget', checkedKey, by);
    return result;
  }

  /** @internal Returns the options of a decorator with all defaults. */
  resolved(options: object, place: string): ResolvedOnceCall {
    let resolved = this.#resolved.get(options);
    if (!resolved)
      this.#resolved.set(options, (resolved = resolveOnceCall(options, this.options, [], place)));
    return resolved;
  }

  /** @internal Returns a key of a call after its check. */
  key(key: string): string {
    return checked(() => userKey(key));
  }

  /** @internal Returns the hash by which calls are compared. */
  fingerprint(payload: unknown): string {
    return fingerprintOf(payload, this.#config.hashSecret);
  }

  /**
   * @internal Claims the key of a call, and waits for it as long as the call says. Whoever gets a run ends it, and a shutdown
   * waits for that.
   */
  async enter(call: OnceCall): Promise<Entered> {
    if (this.#closing.signal.aborted) throw shuttingDown();
    this.#open.add(call);
    let entered: Entered | undefined;
    try {
      entered = await this.#claim(call);
      return entered;
    } catch (error) {
      const fault = OnceError.from(error);
      const isAway = fault.code === 'ServiceUnavailable' || fault.code === 'NetworkTimeout';
      if (call.options.onError !== 'run' || !isAway || this.#closing.signal.aborted) throw fault;
      entered = { run: this.#unguarded(call) };
      return entered;
    } finally {
      if (!entered || 'replay' in entered) this.onOver(call);
    }
  }

  async #claim(call: OnceCall): Promise<Entered> {
    const { key } = call;
    const { signal: closing } = this.#closing;
    const attempt = await claimOf(this.#backend, this.#config.waitingRoom, call, closing);
    const { reply } = attempt;
    switch (reply.status) {
      case 'claimed':
        return { run: await this.#inTime(new OnceRun(this, call, attempt, reply)) };
      case 'done':
        return { replay: reply };
      case 'busy':
        throw inProgress(key, reply.remainingMs, reply.sinceMs);
      case 'mismatch':
        throw mismatch(key);
      case 'unknown':
        throw outcomeUnknown(key);
    }
  }

  /** A claim whose answer came after its lease, or after the shutdown began, is taken back: another call may run by now. */
  async #inTime(run: OnceRun): Promise<OnceRun> {
    const refusal = this.#closing.signal.aborted ? shuttingDown() : run.lost;
    if (!refusal) return run;
    await run.end('nothing').catch(() => {});
    throw refusal;
  }

  #unguarded(call: OnceCall): BodyRun {
    const { signal } = new AbortController();
    return {
      context: { key: call.key, attempt: 1, fence: UNCLAIMED_FENCE, signal },
      lost: undefined,
      end: async () => (this.onOver(call), Date.now()),
    };
  }

  async #end(run: BodyRun, call: OnceCall, outcome: OnceOutcome): Promise<number> {
    const form = 'value' in outcome ? 'value' : 'error';
    if (!this.keeps(call, outcome, form === 'value')) return run.end('failed');
    const pack = (): Promise<Buffer> =>
      this.codec.pack('value' in outcome ? outcome.value : shownError(outcome.error));
    return run.end({ kept: await this.kept(call.key, form, pack) });
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

  /** @internal Packs what is kept. What cannot be kept is noted in the log, and the run is done without a result. */
  async kept(key: string, form: Kept['form'], pack: () => Promise<Buffer>): Promise<Kept> {
    const { maxBytes } = this.options;
    try {
      const bytes = await pack();
      if (bytes.length <= maxBytes) return { form, bytes };
      return this.doneWithout(key, `it has ${bytes.length} bytes, and \`once.maxBytes\` is ${maxBytes}`);
    } catch (error) {
      const name = error instanceof Error ? error.name : 'error';
      return this.doneWithout(key, `it could not be written as JSON or by \`once.encode\` (${name})`);
    }
  }

  /** @internal */
  doneWithout(key: string, why: string): Kept {
    this.#logger.warn(
      `ONCE_NOT_KEPT: The result of ${shownHash(key)} is not kept: ${why}. Later calls with this key get ResultNotKept.`,
    );
    return { form: 'none', bytes: NOTHING };
  }

  /** @internal Returns the value that is kept, or throws the error that is kept. */
  async valueOf(key: string, { form, bytes }: Kept): Promise<unknown> {
    if (form === 'none') throw notKept(key);
    if (form === 'http') return this.codec.unpackAnswer(bytes);
    const value = await this.codec.unpack(bytes);
    if (form === 'value') return value;
    const { name, message } = value as Pick<Error, 'name' | 'message'>;
    throw Object.assign(new Error(message), { name });
  }

  /** @internal Returns the answer that is kept. */
  async answerOf(key: string, kept: Kept): Promise<Answer> {
    if (kept.form === 'http') return this.codec.unpackAnswer(kept.bytes);
    const body = Buffer.from(JSON.stringify(await this.valueOf(key, kept)) ?? '');
    return { status: 200, headers: { 'content-type': 'application/json; charset=utf-8' }, body };
  }

  /** @internal Called when a body begins. Returns what is to be called at its end, if anybody listens. */
  bodyBegins(key: string): ReturnType<typeof bodyBegins> {
    return bodyBegins(this.#config.emit, 'once', key);
  }

  /** @internal A run tells it. */
  onLost(key: string): void {
    this.#emit('lost', key, 'lapsed');
  }

  /** @internal A run tells it. */
  onOver(call: OnceCall): void {
    if (this.#open.delete(call) && this.#open.size === 0) this.#onNoneOpen?.();
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
    if (this.#open.size > 0) await settleWithin(this.#config.shutdown.drainMs, [noneOpen]);
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
async function bodyOf<T>(
  context: OnceContext,
  fn: (context: OnceContext) => T | Promise<T>,
): Promise<{ value: T } | { error: unknown }> {
  const frame: OnceFrame = { context, outer: onceFrames.find(), active: true };
  try {
    return { value: await onceFrames.during(frame, () => fn(context)) };
  } catch (error) {
    return { error };
  }
}

function shownError(error: unknown): { name: string; message: string } {
  const { name, message } = (error ?? {}) as Partial<Error>;
  return { name: String(name ?? 'Error'), message: String(message ?? error) };
}
