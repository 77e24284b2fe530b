import { type Clock, systemClock } from '../clock.js';
import type {
  BalanceRequest,
  BudgetBackend,
  ChargeRequest,
  CreditRequest,
  ExtendRequest,
  FinalizeRequest,
  ListRequest,
  ReapRequest,
  ReapStep,
  RefundRequest,
  ReserveRequest,
  SetLimitRequest,
} from './budget.backend.js';
import { BudgetCalendar, parsePeriodKey, periodKey } from './budget.calendar.js';
import { BudgetInputError, BudgetUnavailableError } from './budget.errors.js';
import { type ConfiguredLimit, type LimitedScope, noLimit, typeOf } from './budget.limits.js';
import { availableOf, exceeded, finalizedOf, releasedOf } from './budget.rules.js';
import type {
  AbortResult,
  Balance,
  BudgetRecord,
  BudgetWindow,
  ChargeResult,
  CreditResult,
  Crossed,
  Exceeded,
  ExtendHoldResult,
  FinalizeResult,
  Period,
  RefundResult,
  ReserveResult,
  SetLimitResult,
  VerifyResult,
} from './budget.types.js';
import { verifySnapshot } from './budget.verify.js';

interface Counter {
  committed: bigint;
  reserved: bigint;
  credits: bigint;
  /** What operations that are forgotten have committed. */
  archived: bigint;
  /** The highest threshold that was crossed. */
  crossed: number;
}

/** One (scope, period, window) that an operation counts in. */
interface Entry {
  readonly field: string;
  readonly scope: string;
  readonly period: Period;
  readonly window: BudgetWindow;
  readonly configured: ConfiguredLimit | undefined;
}

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

interface Operation {
  readonly record: Mutable<BudgetRecord<bigint>>;
  readonly entries: readonly Entry[];
  crossed: readonly Crossed[];
}

type StoredLimits = Map<string, bigint | 'unlimited'>;

/** A root: what the Redis backend keeps in its four keys. */
interface Tree {
  readonly counters: Map<string, Counter>;
  readonly limits: Map<string, StoredLimits>;
  readonly operations: Map<string, Operation>;
  readonly refunds: Map<string, string>;
  readonly credits: Map<string, string>;
  readonly pending: Set<string>;
  /** No hold expires before. */
  nextExpiryMs: number;
  /** What is to be forgotten, and when. */
  readonly garbage: Map<string, { readonly atMs: number; forget(): 'forgotten' | 'kept' }>;
  /** Holds whose expiry reap has not told yet. */
  untold: string[];
}

const MAX_STORED_PERIODS = 16;

/** Budgets of one process, with the behaviour of the Redis backend. */
export class MemoryBudgetBackend implements BudgetBackend {
  readonly #calendar = new BudgetCalendar();
  readonly #trees = new Map<string, Tree>();
  readonly #clock: Clock;
  readonly #retentionMs: number;

  constructor({ clock = systemClock, retentionMs }: { clock?: Clock | undefined; retentionMs: number }) {
    this.#clock = clock;
    this.#retentionMs = retentionMs;
  }

  async reserve(request: ReserveRequest): Promise<ReserveResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { root, id, amount } = request;
    const earlier = tree.operations.get(id);
    if (earlier) return replayReserve(tree, earlier, request);
    const entries = this.#entriesOf(tree, request.scopes, nowMs);
    const denial = exceededBy(tree, entries, amount, nowMs);
    if (denial) return denial;
    const record: BudgetRecord<bigint> = {
      ...newRecord(request, nowMs),
      kind: 'hold',
      state: 'pending',
      expiresAtMs: nowMs + request.ttlMs,
      meta: request.meta === '' ? undefined : (JSON.parse(request.meta) as unknown),
    };
    const operation = { record, entries, crossed: [] };
    this.#count(tree, operation, true, (counter) => (counter.reserved += amount));
    this.#keepWindows(tree, entries, nowMs);
    tree.operations.set(id, operation);
    tree.pending.add(id);
    tree.nextExpiryMs = Math.min(tree.nextExpiryMs, record.expiresAtMs);
    return {
      ok: true,
      status: 'reserved',
      root,
      id,
      amount,
      expiresAtMs: record.expiresAtMs,
      replayed: false,
      ...report(tree, operation),
    };
  }

  async charge(request: ChargeRequest): Promise<ChargeResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { id, amount, mode } = request;
    const earlier = tree.operations.get(id);
    if (earlier && !sameContent(earlier, 'charge', request))
      return { ok: false, reason: 'conflict', record: copy(earlier) };
    if (earlier) return charged(tree, earlier, true);
    const entries = this.#entriesOf(tree, request.scopes, nowMs);
    const denial = mode === 'enforce' ? exceededBy(tree, entries, amount, nowMs) : undefined;
    if (denial) return denial;
    const room = roomOf(tree, entries);
    const record: BudgetRecord<bigint> = {
      ...newRecord(request, nowMs),
      kind: 'charge',
      state: 'finalized',
      actual: amount,
      committed: amount,
      uncovered: room === undefined || room >= amount ? 0n : amount - room,
      expiresAtMs: nowMs,
      endedAtMs: nowMs,
      meta: undefined,
    };
    const operation = { record, entries, crossed: [] };
    this.#count(tree, operation, true, (counter) => (counter.committed += amount));
    tree.operations.set(id, operation);
    this.#end(tree, operation, nowMs);
    return charged(tree, operation, false);
  }

  async finalize(request: FinalizeRequest): Promise<FinalizeResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { id, actual, overage, late } = request;
    const operation = tree.operations.get(id);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record, entries } = operation;
    if (record.state === 'aborted') return { ok: false, reason: 'aborted', record: copy(operation) };
    if (record.state === 'finalized')
      return record.actual === actual
        ? { ...finalizedOf(record, record), replayed: true, ...report(tree, operation) }
        : { ok: false, reason: 'conflict', record: copy(operation) };

    const isLate = record.state === 'expired';
    const held = isLate ? 0n : record.amount;
    const extra = actual > held ? actual - held : 0n;
    const room = roomOf(tree, entries);
    const covered = room === undefined || room > extra ? extra : room;
    if (isLate && (late === 'reject' || (late === 'if_available' && covered < extra)))
      return { ok: false, reason: 'expired', record: copy(operation) };
    const isOver = actual > record.amount;
    if (isOver && overage === 'reject')
      return { ok: false, reason: 'overage_rejected', record: copy(operation) };
    const capped = held + covered > record.amount ? held + covered : record.amount;
    const committed = isOver && overage === 'cap' ? capped : actual;

    Object.assign(record, {
      state: 'finalized',
      actual,
      committed,
      uncovered: extra - covered,
      late: isLate,
    });
    // Who takes no more than he held reaches no threshold.
    this.#count(tree, operation, committed > held, (counter) => {
      counter.reserved -= held;
      counter.committed += committed;
    });
    this.#end(tree, operation, nowMs);
    return { ...finalizedOf(record, record), replayed: false, ...report(tree, operation) };
  }

  async abort(request: {
    root: string;
    id: string;
    signal?: AbortSignal | undefined;
  }): Promise<AbortResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const operation = tree.operations.get(request.id);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record } = operation;
    if (record.state === 'finalized') return { ok: false, reason: 'finalized', record: copy(operation) };
    const replayed = record.state === 'aborted';
    if (!replayed) {
      const held = record.state === 'pending' ? record.amount : 0n;
      for (const { field } of operation.entries) counterOf(tree, field).reserved -= held;
      Object.assign(record, { state: 'aborted', late: record.state === 'expired' });
      this.#end(tree, operation, nowMs);
    }
    return { ok: true, status: 'aborted', released: releasedOf(record), replayed };
  }

  async extend(request: ExtendRequest): Promise<ExtendHoldResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const operation = tree.operations.get(request.id);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record } = operation;
    if (record.state !== 'pending') return { ok: false, reason: record.state, record: copy(operation) };
    record.expiresAtMs = nowMs + request.ttlMs;
    tree.nextExpiryMs = Math.min(tree.nextExpiryMs, record.expiresAtMs);
    return { ok: true, status: 'extended', expiresAtMs: record.expiresAtMs };
  }

  async refund(request: RefundRequest): Promise<RefundResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { id, amount, refundId } = request;
    const operation = tree.operations.get(id);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record } = operation;
    const content = `${amount} ${id}`;
    const earlier = tree.refunds.get(refundId);
    if (earlier !== undefined && earlier !== content) return { ok: false, reason: 'conflict' };
    if (record.state !== 'finalized') return { ok: false, reason: record.state, record: copy(operation) };
    if (earlier === undefined) {
      if (amount > record.committed - record.refunded)
        return { ok: false, reason: 'exceeds_committed', record: copy(operation) };
      record.refunded += amount;
      for (const entry of operation.entries) counterOf(tree, entry.field).committed -= amount;
      this.#keepWindows(tree, operation.entries, nowMs);
      tree.refunds.set(refundId, content);
      this.#forget(tree, `refund ${refundId}`, nowMs, () => tree.refunds.delete(refundId));
    }
    const { balances } = report(tree, operation);
    return {
      ok: true,
      status: 'refunded',
      amount,
      refunded: record.refunded,
      replayed: earlier !== undefined,
      balances,
    };
  }

  async credit(request: CreditRequest): Promise<CreditResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { id, amount, scope, period } = request;
    const content = `${amount} ${scope.scope}|${periodKey(period)}`;
    const earlier = tree.credits.get(id);
    if (earlier !== undefined && earlier !== content) return { ok: false, reason: 'conflict' };
    const entry = this.#entriesOf(tree, [scope], nowMs).find(
      (each) => periodKey(each.period) === periodKey(period),
    );
    if (!entry) throw noLimit(scope.scope);
    if (earlier === undefined) {
      counterOf(tree, entry.field).credits += amount;
      this.#keepWindows(tree, [entry], nowMs);
      tree.credits.set(id, content);
      this.#forget(tree, `credit ${id}`, nowMs, () => tree.credits.delete(id));
    }
    return { ok: true, status: 'credited', replayed: earlier !== undefined, balance: balanceOf(tree, entry) };
  }

  async setLimit(request: SetLimitRequest): Promise<SetLimitResult> {
    const { tree } = this.#open(request);
    const { scope, period, limit } = request;
    const limits: StoredLimits = new Map(tree.limits.get(scope));
    if (limit === null) limits.delete(periodKey(period));
    else limits.set(periodKey(period), limit);
    if (limits.size > MAX_STORED_PERIODS)
      throw new BudgetInputError('A scope can have at most 16 periods limited by setLimit.');
    if (limits.size === 0) tree.limits.delete(scope);
    else tree.limits.set(scope, limits);
    return { ok: true, status: limit === null ? 'cleared' : 'set' };
  }

  async balance(request: BalanceRequest): Promise<Balance<bigint>[]> {
    const { tree, nowMs } = this.#open(request);
    return this.#entriesOf(tree, [request.scope], nowMs).map((entry) => balanceOf(tree, entry));
  }

  async get(request: {
    root: string;
    id: string;
    signal?: AbortSignal | undefined;
  }): Promise<BudgetRecord<bigint> | null> {
    const operation = this.#open(request).tree.operations.get(request.id);
    return operation ? copy(operation) : null;
  }

  async list(request: ListRequest): Promise<{ records: BudgetRecord<bigint>[]; cursor: string | null }> {
    const { tree } = this.#open(request);
    const operations = [...tree.operations.values()];
    const from = Number(request.cursor ?? 0);
    const to = from + request.limit;
    return {
      records: operations.slice(from, to).map(copy),
      cursor: to < operations.length ? String(to) : null,
    };
  }

  async reap(request: ReapRequest): Promise<ReapStep> {
    const { tree, nowMs } = this.#open(request);
    const expired = tree.untold.splice(0, request.max);
    let purged = 0;
    const due = [...tree.garbage]
      .filter(([, { atMs }]) => atMs <= nowMs)
      .sort(([, a], [, b]) => a.atMs - b.atMs);
    for (const [name, each] of due.slice(0, request.max)) {
      tree.garbage.delete(name);
      if (each.forget() === 'forgotten') purged++;
    }
    if (isEmpty(tree)) this.#trees.delete(request.root);
    return { expired, purged, nextInMs: nextDueMs(tree, nowMs) };
  }

  async verify(request: { root: string; signal?: AbortSignal | undefined }): Promise<VerifyResult> {
    const { tree } = this.#open(request);
    return verifySnapshot({
      counters: tree.counters,
      operations: [...tree.operations.values()].map(({ record, entries }) => ({
        ...record,
        fields: entries.map(({ field }) => field),
      })),
      pending: tree.pending,
    });
  }

  /** The root as it is now: without the holds whose time is up. */
  #open({ root, signal }: { root: string; signal?: AbortSignal | undefined }): { tree: Tree; nowMs: number } {
    if (signal?.aborted)
      throw new BudgetUnavailableError({
        code: 'Aborted',
        message: 'The operation was aborted by its signal.',
        cause: signal.reason,
      });
    let tree = this.#trees.get(root);
    if (!tree) this.#trees.set(root, (tree = newTree()));
    const nowMs = this.#clock.now();
    if (tree.nextExpiryMs <= nowMs) this.#expire(tree, nowMs);
    return { tree, nowMs };
  }

  #expire(tree: Tree, nowMs: number): void {
    tree.nextExpiryMs = Infinity;
    for (const id of tree.pending) {
      const operation = tree.operations.get(id) as Operation;
      const { record, entries } = operation;
      if (record.expiresAtMs > nowMs) {
        tree.nextExpiryMs = Math.min(tree.nextExpiryMs, record.expiresAtMs);
        continue;
      }
      record.state = 'expired';
      record.endedAtMs = record.expiresAtMs;
      tree.pending.delete(id);
      tree.untold.push(id);
      for (const entry of entries) counterOf(tree, entry.field).reserved -= record.amount;
      this.#forgetOperation(tree, operation, record.expiresAtMs);
      this.#keepWindows(tree, entries, record.expiresAtMs);
    }
  }

  /** Everything that limits these scopes now, configured or set. */
  #entriesOf(tree: Tree, scopes: readonly LimitedScope[], nowMs: number): Entry[] {
    return scopes.flatMap(({ scope, limits }) => {
      const configured = new Map(limits.map((limit) => [periodKey(limit.period), limit]));
      const stored = [scope, typeOf(scope)].flatMap((name) => [...(tree.limits.get(name)?.keys() ?? [])]);
      const entries = [...new Set([...configured.keys(), ...stored])].map((key): Entry => {
        const period = parsePeriodKey(key);
        const window = this.#calendar.windowAt(period, nowMs);
        const field = `${scope}|${key}|${window.startMs}`;
        return { field, scope, period, window, configured: configured.get(key) };
      });
      if (entries.length === 0) throw noLimit(scope);
      return entries;
    });
  }

  /** Changes the counters of an operation, and notes which thresholds that crossed. */
  #count(tree: Tree, operation: Operation, crosses: boolean, change: (counter: Counter) => void): void {
    operation.crossed = operation.entries.flatMap((entry) => {
      const counter = counterOf(tree, entry.field);
      change(counter);
      return crosses ? cross(tree, entry, counter) : [];
    });
  }

  #end(tree: Tree, operation: Operation, nowMs: number): void {
    operation.record.endedAtMs = nowMs;
    tree.pending.delete(operation.record.id);
    this.#keepWindows(tree, operation.entries, nowMs);
    this.#forgetOperation(tree, operation, nowMs);
  }

  #forgetOperation(tree: Tree, { record, entries }: Operation, endedAtMs: number): void {
    this.#forget(tree, `operation ${record.id}`, endedAtMs, () => {
      tree.operations.delete(record.id);
      // Its window goes on knowing what it committed, so that the sums can still be checked.
      for (const { field } of entries) {
        const counter = tree.counters.get(field);
        if (counter) counter.archived += record.committed - record.refunded;
      }
    });
  }

  /** A past window outlives the last operation that touched it, by a moment. */
  #keepWindows(tree: Tree, entries: readonly Entry[], fromMs: number): void {
    for (const { field, window } of entries) {
      if (window.endMs === null) continue;
      const name = `window ${field}`;
      const atMs = Math.max(window.endMs, fromMs) + this.#retentionMs + 1;
      if (atMs > (tree.garbage.get(name)?.atMs ?? 0))
        tree.garbage.set(name, { atMs, forget: () => this.#forgetWindow(tree, name, field) });
    }
  }

  #forgetWindow(tree: Tree, name: string, field: string): 'forgotten' | 'kept' {
    if (tree.counters.get(field)?.reserved) {
      const atMs = this.#clock.now() + this.#retentionMs;
      tree.garbage.set(name, { atMs, forget: () => this.#forgetWindow(tree, name, field) });
      return 'kept';
    }
    tree.counters.delete(field);
    return 'forgotten';
  }

  #forget(tree: Tree, name: string, fromMs: number, forget: () => void): void {
    tree.garbage.set(name, {
      atMs: fromMs + this.#retentionMs,
      forget: () => {
        forget();
        return 'forgotten';
      },
    });
  }
}

const newTree = (): Tree => ({
  counters: new Map(),
  limits: new Map(),
  operations: new Map(),
  refunds: new Map(),
  credits: new Map(),
  pending: new Set(),
  nextExpiryMs: Infinity,
  garbage: new Map(),
  untold: [],
});

const isEmpty = ({ counters, limits, operations, garbage, untold }: Tree): boolean =>
  counters.size + limits.size + operations.size + garbage.size + untold.length === 0;

const newRecord = (
  { root, id, amount, scopes }: { root: string; id: string; amount: bigint; scopes: readonly LimitedScope[] },
  createdAtMs: number,
): Omit<BudgetRecord<bigint>, 'kind' | 'state' | 'expiresAtMs' | 'meta'> => ({
  root,
  id,
  amount,
  scopes: scopes.map(({ scope }) => scope),
  actual: 0n,
  committed: 0n,
  refunded: 0n,
  uncovered: 0n,
  late: false,
  createdAtMs,
  endedAtMs: null,
});

const copy = ({ record }: Operation): BudgetRecord<bigint> => ({ ...record, scopes: [...record.scopes] });

function counterOf(tree: Tree, field: string): Counter {
  let counter = tree.counters.get(field);
  if (!counter) {
    counter = { committed: 0n, reserved: 0n, credits: 0n, archived: 0n, crossed: 0 };
    tree.counters.set(field, counter);
  }
  return counter;
}

function sameContent(
  { record }: Operation,
  kind: 'hold' | 'charge',
  { amount, scopes }: { amount: bigint; scopes: readonly LimitedScope[] },
): boolean {
  const asked = scopes.map(({ scope }) => scope).sort();
  const done = [...record.scopes].sort();
  return record.kind === kind && record.amount === amount && JSON.stringify(asked) === JSON.stringify(done);
}

function replayReserve(tree: Tree, earlier: Operation, request: ReserveRequest): ReserveResult<bigint> {
  const { root, id, state, amount, expiresAtMs } = earlier.record;
  if (state !== 'pending') return { ok: false, reason: `already_${state}`, record: copy(earlier) };
  if (!sameContent(earlier, 'hold', request)) return { ok: false, reason: 'conflict', record: copy(earlier) };
  return {
    ok: true,
    status: 'reserved',
    root,
    id,
    amount,
    expiresAtMs,
    replayed: true,
    ...report(tree, earlier),
  };
}

function charged(tree: Tree, operation: Operation, replayed: boolean): ChargeResult<bigint> {
  const { root, id, amount, uncovered } = operation.record;
  return { ok: true, status: 'charged', root, id, amount, uncovered, replayed, ...report(tree, operation) };
}

/** What a call set beats what is configured, and a scope beats its type. A limit that was cleared counts no more. */
function limitOf(tree: Tree, { scope, period, configured }: Entry): bigint | 'unlimited' {
  const key = periodKey(period);
  const own = tree.limits.get(scope)?.get(key);
  const general = tree.limits.get(typeOf(scope))?.get(key);
  const exact = configured?.inherited ? undefined : configured?.limit;
  return own ?? exact ?? general ?? configured?.limit ?? 'unlimited';
}

function balanceOf(tree: Tree, entry: Entry): Balance<bigint> {
  const { committed = 0n, reserved = 0n, credits = 0n } = tree.counters.get(entry.field) ?? {};
  const sums = { limit: limitOf(tree, entry), credits, committed, reserved };
  return {
    scope: entry.scope,
    period: entry.period,
    window: entry.window,
    ...sums,
    available: availableOf(sums),
  };
}

const report = (
  tree: Tree,
  { entries, crossed }: Operation,
): { balances: Balance<bigint>[]; crossed: readonly Crossed[] } => ({
  balances: entries.map((entry) => balanceOf(tree, entry)),
  crossed,
});

/** What all of the entries have room for; undefined: anything. */
function roomOf(tree: Tree, entries: readonly Entry[]): bigint | undefined {
  let room: bigint | undefined;
  for (const entry of entries) {
    const { available } = balanceOf(tree, entry);
    if (available !== 'unlimited' && (room === undefined || available < room)) room = available;
  }
  return room;
}

/** Amount 0 is always admitted: it takes nothing. */
function exceededBy(
  tree: Tree,
  entries: readonly Entry[],
  requested: bigint,
  nowMs: number,
): Exceeded<bigint> | undefined {
  const violations = entries.flatMap((entry) => {
    const { scope, period, window, limit, committed, reserved, available } = balanceOf(tree, entry);
    if (available === 'unlimited' || requested === 0n || available >= requested) return [];
    return [{ scope, period, limit, committed, reserved, available, requested, resetAtMs: window.endMs }];
  });
  return violations.length === 0 ? undefined : exceeded(violations, nowMs);
}

function cross(tree: Tree, entry: Entry, counter: Counter): Crossed[] {
  const { limit, credits, committed, reserved } = balanceOf(tree, entry);
  if (limit === 'unlimited' || limit + credits === 0n) return [];
  const crossed = (entry.configured?.thresholds ?? []).filter(
    (percent) =>
      percent > counter.crossed && (committed + reserved) * 100n >= BigInt(percent) * (limit + credits),
  );
  counter.crossed = crossed.at(-1) ?? counter.crossed;
  return crossed.map((percent) => ({ scope: entry.scope, period: entry.period, percent }));
}

function nextDueMs(tree: Tree, nowMs: number): number | null {
  if (tree.untold.length > 0) return 0;
  let nextMs = tree.nextExpiryMs;
  for (const { atMs } of tree.garbage.values()) nextMs = Math.min(nextMs, atMs);
  return nextMs === Infinity ? null : Math.max(0, nextMs - nowMs);
}
