/** What every event says. Nothing in it names a key, an id or a payload, unless `includeRaw` allows it. */
interface EventOf<Feature extends string, Type extends string> {
  readonly feature: Feature;
  /** Which operation it was. */
  readonly type: Type;
  /** `fail`: it was refused (`reason`), or it threw (`code`). */
  readonly result: 'ok' | 'fail';
  /** Why it was refused: one of a few words, fit for a metric's label. */
  readonly reason?: string;
  /** The code of the error that was thrown. */
  readonly code?: string;
  /** From the call to its answer, in ms, with fractions. */
  readonly durationMs: number;
  /** Stands for `key`: `hashKey(key)`, or its HMAC where there is a `hashSecret`. */
  readonly keyHash?: string;
  /** What the operation was about. Only where `includeRaw` allows it. */
  readonly key?: string;
}

/**
 * `lock` is of `LockService.lock()` and `@WithLock()`, and only for what no single operation shows: `reason` is
 * `timeout` or `aborted` (`durationMs` is the wait), `already_held` (by the very code that asked for it), or `lost`
 * (`durationMs` is how long it was held), which comes when the loss is found: the body may still run.
 */
export interface LockEvent extends EventOf<
  'lock',
  'acquire' | 'release' | 'extend' | 'isLocked' | 'lookup' | 'lock'
> {
  readonly lockIdHash?: string;
  /** Whoever has it can release the lock. Only where `includeRaw` allows it. */
  readonly lockId?: string;
}

/** Of the limiter, and of counters. `key` is the key as it was given: an address, a user, an email. */
export interface LimitEvent extends EventOf<
  'limit',
  | 'check'
  | 'confirm'
  | 'withdraw'
  | 'peek'
  | 'forgive'
  | 'reset'
  | 'block'
  | 'unblock'
  | 'counter.increment'
  | 'counter.peek'
  | 'counter.reset'
> {
  /** The limiter's name. Of a call against several limits it is the one that denied, else the first. */
  readonly policy?: string;
  /** Redis did not answer: this was counted in this process. */
  readonly degraded?: true;
  /** Denied without asking: this process knew of the block (`limit.denyCacheMs`). `durationMs` is 0. */
  readonly cached?: true;
}

/**
 * `key` is the operation's id; of `balance`, `setLimit` and `credit` the scope; of `list`, `reap` and `verify` the
 * root. `expired` comes once for each hold that nobody settled in time, `cost` (`unreadable`) where the cost of a body
 * could not be read and the estimate was counted.
 */
export type BudgetEvent =
  | ThresholdEvent
  | EventOf<
      'budget',
      | 'reserve'
      | 'charge'
      | 'finalize'
      | 'abort'
      | 'extend'
      | 'refund'
      | 'credit'
      | 'setLimit'
      | 'balance'
      | 'get'
      | 'list'
      | 'reap'
      | 'verify'
      | 'expired'
      | 'cost'
    >;

/** A step reached a threshold of a limit for the first time in its window. `key` is the scope. */
export interface ThresholdEvent extends EventOf<'budget', 'threshold'> {
  readonly percent: number;
  /** `user` of `user:42`. */
  readonly scopeType: string;
  readonly period: ThresholdPeriod;
}

type ThresholdPeriod =
  | 'lifetime'
  | {
      readonly every: 'hour' | 'day' | 'week' | 'month' | 'year';
      readonly tz?: string;
      readonly anchor?: number;
    }
  | { readonly windowMs: number };

/** `key` is the secret's tag, a hash: the id itself, which opens the secret, is never in an event. */
export interface SecretEvent extends EventOf<
  'secret',
  'create' | 'view' | 'peek' | 'burn' | 'status' | 'confirm' | 'release'
> {
  /** As given at create, while anything is known of the secret. */
  readonly label?: string;
}

/** One operation of one feature, as telemetry tells it. */
export type SyncGuardEvent = LockEvent | LimitEvent | BudgetEvent | SecretEvent;

export type Feature = SyncGuardEvent['feature'];

/** What is known of an operation apart from whether it worked. */
export interface Facts {
  /** Instead of the method's name. */
  readonly type?: SyncGuardEvent['type'];
  /** Given: the operation was refused. */
  readonly reason?: string | undefined;
  readonly key?: string | undefined;
  readonly lockId?: string | undefined;
  readonly policy?: string;
  readonly label?: string;
  readonly degraded?: true;
  readonly cached?: true;
  readonly percent?: number;
  readonly scopeType?: string;
  readonly period?: ThresholdPeriod;
}

/** An operation before anything of it is hashed: not for listeners. */
export interface Observation extends Facts {
  readonly feature: Feature;
  readonly type: SyncGuardEvent['type'];
  readonly result: 'ok' | 'fail';
  readonly code?: string;
  readonly durationMs: number;
}

/** Tells the listener of an operation. Never throws. */
export type Emit = (observation: Observation) => void;
