import { randomUUID } from 'node:crypto';
import { Injectable, Logger, type OnApplicationShutdown, type OnModuleDestroy } from '@nestjs/common';
import { BackgroundRetries } from '../core/background-retries.js';
import { shownHash } from '../core/keys.js';
import { settleWithin } from '../core/settle-within.js';
import {
  abortSignal,
  type CallOptions,
  callOptions,
  knownOptions,
  leavingAs,
  userKey,
} from '../core/validate.js';
import type { WaitingRoom } from '../core/waiting-room.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { innermostFrame, type OnceFrame, onceFrames } from './current-once.js';
import type { ClaimReply, Kept, OnceBackend } from './once.backend.js';
import { type Answer, fingerprintOf, OnceCodec } from './once.codec.js';
import { inProgress, mismatch, notKept, OnceError, outcomeUnknown, shuttingDown } from './once.errors.js';
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

/** What a call has come to: its own run, the result of an earlier one, or a body without a promise while Redis is away. */
export type Entered =
  | { readonly run: OnceRun }
  | { readonly replay: Extract<ClaimReply, { status: 'done' }> }
  | { readonly unguarded: OnceContext };

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
export class OnceService implements OnModuleDestroy, OnApplicationShutdown {
  readonly #logger = new Logger('SyncGuard');
  // What is private is not shown by `util.inspect`.
  readonly #backend: OnceBackend;
  readonly #config: OnceServiceConfig;
  /** @internal */
  readonly codec: OnceCodec;
  readonly #retries = new BackgroundRetries();
  readonly #resolved = new WeakMap<object, ResolvedOnceCall>();
  /** Everything that a shutdown waits for. */
  readonly #open = new Set<Promise<unknown>>();
  #isClosing = false;

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
      if (typeof fn !== 'function')
        throw new OnceError({ code: 'InvalidArgument', message: 'fn must be a function.' });
      const { key, payload, signal } = knownOptions('options', options ?? null, [
        ...CALL_NAMES,
      ]) as OnceOptions;
      const resolved = resolveOnceCall(options, this.options, ['key', 'payload', 'signal']);
      if (signal !== undefined) abortSignal('signal', signal);
      return { ...resolved, key: userKey(key), print: this.fingerprint(payload), signal };
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
    if ('unguarded' in entered) {
      const value = await fn(entered.unguarded);
      return { value, replayed: false, attempt: 1, completedAtMs: Date.now() };
    }
    return this.opened(this.#under(entered.run, fn, call));
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
   * Stores by hand what an unknown outcome was. Later calls with the key get the value. Over HTTP they get it as JSON with 200.
   * Refused while the call runs, and if its result is kept.
   */
  async settle(key: string, outcome: { value: unknown }): Promise<SettleOnceResult> {
    const checkedKey = checked(() => {
      if (!('value' in knownOptions('outcome', outcome ?? null, ['value'])))
        throw new OnceError({ code: 'InvalidArgument', message: 'settle() needs a value.' });
      return userKey(key);
    });
    const kept = await this.kept(checkedKey, 'value', () => this.codec.pack(outcome.value));
    return attributed(this.#backend.settle({ key: checkedKey, nonce: randomUUID() }, kept));
  }

  /**
   * Deletes what is known of a key, so that the next call runs.
   *
   * @param options.force - also while a call runs, which then loses the key. Default: false.
   */
  async forget(key: string, options: { force?: boolean } = {}): Promise<ForgetOnceResult> {
    const [checkedKey, force] = checked(() => {
      const { force = false } = knownOptions('options', options, ['force']);
      return [userKey(key), force === true];
    });
    return attributed(this.#backend.forget(checkedKey, force));
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

  /** @internal Claims the key of a call, and waits for it as long as the call says. */
  async enter(call: OnceCall): Promise<Entered> {
    if (this.#isClosing) throw shuttingDown();
    const { key } = call;
    try {
      const { reply, nonce, sentMs } = await claimOf(this.#backend, this.#config.waitingRoom, call);
      switch (reply.status) {
        case 'claimed':
          return { run: new OnceRun(this, { key, nonce }, call, { ...reply, sentMs }) };
        case 'done':
          return { replay: reply };
        case 'busy':
          throw inProgress(key, reply.remainingMs);
        case 'mismatch':
          throw mismatch(key);
        case 'unknown':
          throw outcomeUnknown(key);
      }
    } catch (error) {
      const fault = OnceError.from(error);
      const isAway = fault.code === 'ServiceUnavailable' || fault.code === 'NetworkTimeout';
      if (call.onError !== 'run' || !isAway || this.#isClosing) throw fault;
      const { signal } = new AbortController();
      return { unguarded: { key, attempt: 1, fence: UNCLAIMED_FENCE, signal } };
    }
  }

  /** @internal Ends a run by its outcome: an answer over HTTP, or a value or an error. */
  async end(run: OnceRun, { keep }: Pick<OnceCall, 'keep'>, outcome: OnceOutcome): Promise<number> {
    const { key } = run.context;
    const isKept = this.keeps(keep, outcome, 'value' in outcome);
    if (!isKept) return run.end('failed');
    const pack = (): Promise<Buffer> =>
      this.codec.pack('value' in outcome ? outcome.value : shownError(outcome.error));
    return run.end({ kept: await this.kept(key, 'value' in outcome ? 'value' : 'error', pack) });
  }

  /** @internal Asks `keep`. If it throws, what is kept by default is. */
  keeps(keep: OnceCall['keep'], outcome: OnceOutcome, byDefault: boolean): boolean {
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

  /** @internal Has a shutdown wait for a body. */
  opened<T>(body: Promise<T>): Promise<T> {
    const open: Promise<unknown> = settled(body).then(() => this.#open.delete(open));
    this.#open.add(open);
    return body;
  }

  /** @internal A run tells it. */
  onLost(key: string): void {
    this.#emit('lost', key, 'lapsed');
  }

  /** @internal A run tells it. */
  endLater(run: OnceRun, end: () => Promise<number>, fault: unknown): void {
    const { key } = run.context;
    const { code, message } = OnceError.from(fault);
    this.#emit('uncertain', key, code);
    this.#logger.warn(
      `ONCE_UNCERTAIN: The end of ${shownHash(key)} could not be stored yet. SyncGuard tries again until it is. ${message}`,
    );
    this.opened(
      new Promise<void>((resolve) =>
        this.#retries.start(() => end().then(() => (resolve(), true)), Infinity, fault),
      ),
    ).catch(() => {});
  }

  /** Nest calls this first at a shutdown. New calls are refused, and those that run may end within `shutdown.drainMs`. */
  async onModuleDestroy(): Promise<void> {
    this.#isClosing = true;
    await settleWithin(this.#config.shutdown.drainMs, [...this.#open]);
    await this.#retries.flush();
  }

  /** Nest calls this before the connection closes. */
  onApplicationShutdown(): void {
    this.#backend.close?.();
  }

  async #under<T>(
    run: OnceRun,
    fn: (context: OnceContext) => T | Promise<T>,
    call: OnceCall,
  ): Promise<OnceResult<T>> {
    const outcome = await bodyOf(run.context, fn);
    const ended = this.end(run, call, outcome);
    if ('error' in outcome) {
      await ended.catch(() => {}); // What the body has thrown is more than that its key was lost.
      throw outcome.error;
    }
    return {
      value: outcome.value,
      replayed: false,
      attempt: run.context.attempt,
      completedAtMs: await ended,
    };
  }

  #emit(type: 'lost' | 'uncertain', key: string, reason: string): void {
    this.#config.emit?.({ feature: 'once', type, result: 'fail', reason, key, durationMs: 0 });
  }
}

const CALL_NAMES = [
  ...['key', 'payload', 'signal', 'keepMs', 'leaseMs', 'maxRunMs', 'waitMs', 'afterCrash', 'keep', 'onError'],
] as const;

const settled = (promise: Promise<unknown>): Promise<unknown> => promise.catch(() => {});

/** Runs a body under its run. Never rejects. */
async function bodyOf<T>(
  context: OnceContext,
  fn: (context: OnceContext) => T | Promise<T>,
): Promise<{ value: T } | { error: unknown }> {
  const frame: OnceFrame = { context, outer: innermostFrame(), active: true };
  try {
    return { value: await onceFrames().run(frame, fn, context) };
  } catch (error) {
    return { error };
  } finally {
    frame.active = false;
  }
}

function shownError(error: unknown): { name: string; message: string } {
  const { name, message } = (error ?? {}) as Partial<Error>;
  return { name: String(name ?? 'Error'), message: String(message ?? error) };
}
