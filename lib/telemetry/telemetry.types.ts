/**
 * The fields of every event. Keys and ids are in it as hashes, and unhashed only if `includeRaw` allows it. No event
 * shows a payload.
 */
export interface SyncGuardEventOf<Feature extends string, Type extends string> {
  /** The feature that reports. */
  readonly feature: Feature;
  /** The operation. */
  readonly type: Type;
  /** `fail`: the operation was refused (see `reason`), or it threw (see `code`). */
  readonly result: 'ok' | 'fail';
  /**
   * Why the operation was refused. One of a few words, so that it can be a label of a metric. `loop` says that this process
   * was too busy to read the answer of Redis in time.
   */
  readonly reason?: string;
  /** The code of the error that was thrown. */
  readonly code?: string;
  /** How long the operation took, in ms, with fractions. */
  readonly durationMs: number;
  /** The hash of `key`: `hashKey(key)`, or an HMAC where `hashSecret` is set. */
  readonly keyHash?: string;
  /** The key or id of the operation, unhashed. Only if `includeRaw` allows it. */
  readonly key?: string;
}

/**
 * An event of a lock. The type `lock` belongs to `LockService.lock()` and `@WithLock()`, and reports what no single
 * operation shows: with `ok` that the call has got its lock, else that it has not, or has lost it. `durationMs` is the wait. Where
 * Redis did not answer, there is a `code` only. Else its `reason` is one of:
 *
 * - `timeout`, `aborted`: the wait ended without the lock.
 * - `too_many_waiting`, `deadlock`: the wait was refused.
 * - `already_held`: the code that holds the lock asked for it again.
 * - `lost`: the lock was lost. `durationMs` is how long it was held. The event comes when the loss is noticed, and the
 *   body may still run.
 *
 * The types `fence` and `fence.get` belong to `FenceGuard`. `key` is the resource. The reason `overtaken` says that a
 * later holder has been there, so the write was refused.
 */
export interface LockEvent extends SyncGuardEventOf<
  'lock',
  'acquire' | 'release' | 'extend' | 'isLocked' | 'lookup' | 'lock' | 'fence' | 'fence.get'
> {
  /** The hash of the lock's id. */
  readonly lockIdHash?: string;
  /** The hashes of the keys, where several are locked together. There is no `keyHash` then. */
  readonly keyHashes?: readonly string[];
  /** The keys that `keyHashes` stands for. Only if `includeRaw` allows it. */
  readonly keys?: readonly string[];
  /** How long an `acquire` has waited in the queue, in ms. */
  readonly waitedMs?: number;
  /** The place in the queue when the wait began, counted from 1. */
  readonly place?: number;
  /**
   * In a `release`: how long the lock was held, in ms, with fractions. It is there for every lock of `lock()` and of a
   * handle, and for a release by the lock's id in the process that acquired it. A lock that stays for the rest of its
   * `minHoldMs` has it in the `extend` that takes the place of the release.
   */
  readonly heldMs?: number;
  /** Anyone who has it can release the lock. Only if `includeRaw` allows it. */
  readonly lockId?: string;
}

/** An event of a limit or a counter. `key` is what the limit counts by, such as an address, a user or an email. */
export interface LimitEvent extends SyncGuardEventOf<
  'limit',
  | 'check'
  | 'confirm'
  | 'renew'
  | 'withdraw'
  | 'peek'
  | 'forgive'
  | 'reset'
  | 'block'
  | 'unblock'
  | 'lift'
  | 'counter.increment'
  | 'counter.peek'
  | 'counter.reset'
> {
  /**
   * The name of the limit. For a call against several limits it is the one that denied with the longest wait. If none
   * denied, it is the first.
   */
  readonly policy?: string;
  /** Redis did not answer, so this process counted by itself. */
  readonly degraded?: true;
  /** The deny cache of this process denied the call without asking Redis (`limit.denyCacheMs`). `durationMs` is 0. */
  readonly fromDenyCache?: true;
}

/**
 * An event of a budget. `key` is the id of the operation. For `balance`, `setLimit` and `credit` it is the scope, for
 * `list`, `reap` and `verify` the root. `expired` comes once for each hold that was not settled in time, and
 * `quarantined` (with the root) once for each record that could not be read and was set aside. `cost` with the reason
 * `unreadable` comes where the cost of a body could not be read. Then at least the estimate is committed. `run` comes when a
 * body has ended, before it is settled: `durationMs` is how long it ran, and the reason `threw` says that it threw.
 */
export type BudgetEvent =
  | ThresholdEvent
  | SpendingEvent
  | SyncGuardEventOf<
      'budget',
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
      | 'quarantined'
      | 'cost'
      | 'run'
    >;

/** A step that may spend something, or that was refused since a limit has no room (`exceeded`). */
export interface SpendingEvent extends SyncGuardEventOf<'budget', 'reserve' | 'charge' | 'finalize'> {
  /**
   * The amount that was spent. Only where this step has spent it: a repetition has none. If Redis answers only after the step
   * has thrown, it is in an event of its own.
   */
  readonly spent?: number;
  /** The types of the scopes that it was spent in, or that have no room: `user` of `user:42`. Each once. */
  readonly scopeTypes?: readonly string[];
}

/**
 * A threshold of a limit was reached for the first time in its window, or since a credit or a raise of the limit. `key`
 * is the scope.
 */
export interface ThresholdEvent extends SyncGuardEventOf<'budget', 'threshold'> {
  /** The percentage of the limit that was reached. */
  readonly percent: number;
  /** The part of the scope before the colon: `user` of `user:42`. */
  readonly scopeType: string;
  /** The period of the limit. */
  readonly period: ThresholdPeriod;
}

/** The period of a limit, in the same form as in `budget.limits`. */
export type ThresholdPeriod =
  | 'lifetime'
  | {
      /** The unit of the calendar. */
      readonly every: 'hour' | 'day' | 'week' | 'month' | 'year';
      /** The time zone of the calendar. */
      readonly tz?: string;
      /** Where in its unit the period starts. */
      readonly anchor?: number;
    }
  | {
      /** The length of the window, in ms. */
      readonly windowMs: number;
    };

/** An event of a secret. `key` is the tag of the secret, a hash. The id opens the secret, so it is in no event. */
export interface SecretEvent extends SyncGuardEventOf<
  'secret',
  'create' | 'view' | 'peek' | 'burn' | 'status' | 'confirm' | 'release'
> {
  /** The label that was passed to `create()`, as long as the backend still knows the secret. */
  readonly label?: string;
}

/**
 * An event of a call that is answered once. `claim` runs or is refused (`busy`, `mismatch`, `unknown`), `replay` gives the result
 * of an earlier call. `run` comes when a body has ended: `durationMs` is how long it ran, and the reason `threw` says that it
 * threw. `complete`, `fail` and `withdraw` end a run. `lost` comes once, when a run notices that it has lost
 * its key: the reason is `lapsed` (its lease), or `overtaken` (another call has it, or it was settled or forgotten by hand).
 * `uncertain` comes, with the code of the fault as its reason, if the end of a run could not be stored at once.
 */
export type OnceEvent = SyncGuardEventOf<
  'once',
  | 'claim'
  | 'replay'
  | 'renew'
  | 'run'
  | 'complete'
  | 'fail'
  | 'withdraw'
  | 'get'
  | 'settle'
  | 'forget'
  | 'lost'
  | 'uncertain'
>;

/** What an operator may change by hand. */
export type ForcedOperation =
  'release' | 'unblock' | 'lift' | 'setLimit' | 'credit' | 'abort' | 'settle' | 'forget';

/**
 * An operator has changed something by hand: `forceRelease()`, or a call with `by`. `reason` is what he has written, so it is
 * no label of a metric.
 */
export interface ForcedEvent extends SyncGuardEventOf<'lock' | 'limit' | 'budget' | 'once', 'forced'> {
  /** What was done. */
  readonly operation: ForcedOperation;
  /** Who it was. */
  readonly by?: string;
  /** The name of the limit. */
  readonly policy?: string;
}

/** Any event. */
export type SyncGuardEvent = LockEvent | LimitEvent | BudgetEvent | SecretEvent | OnceEvent | ForcedEvent;

export type Feature = SyncGuardEvent['feature'];

/**
 * The facts of an operation, apart from its success. lib/assembly/observed-*.ts says which facts each operation has,
 * `observe.ts` adds its success and duration, and `telemetry.ts` hashes keys and ids.
 */
export interface Facts extends Partial<
  Pick<LockEvent, 'place' | 'waitedMs' | 'heldMs'> &
    Pick<LimitEvent, 'policy' | 'degraded' | 'fromDenyCache'> &
    Pick<ThresholdEvent, 'percent' | 'scopeType' | 'period'> &
    Pick<SpendingEvent, 'spent' | 'scopeTypes'> &
    Pick<SecretEvent, 'label'> &
    Pick<ForcedEvent, 'operation' | 'by' | 'keyHash'>
> {
  /** Replaces the name of the method. */
  readonly type?: SyncGuardEvent['type'];
  readonly reason?: string | undefined;
  readonly key?: string | undefined;
  readonly keys?: readonly string[] | undefined;
  readonly lockId?: string | undefined;
}

/** The facts of an operation before hashing. Listeners never get this. */
export type Observation = Facts & Pick<SyncGuardEvent, 'feature' | 'type' | 'result' | 'code' | 'durationMs'>;

/** Reports an operation to the listener. Never throws. */
export type Emit = (observation: Observation) => void;
