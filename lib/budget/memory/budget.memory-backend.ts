import { refuseAborted } from '../../core/abort.js';
import { type Clock, systemClock } from '../../core/clock.js';
import type {
  AbortOutcome,
  BalanceRequest,
  BudgetBackend,
  ChargeRequest,
  CreditRequest,
  ExtendRequest,
  FinalizeRequest,
  HoldRequest,
  LimitedScope,
  ListRequest,
  ReapRequest,
  ReapStep,
  RefundRequest,
  ReserveOutcome,
  ReserveRequest,
  SetLimitRequest,
} from '../budget.backend.js';
import { BudgetCalendar, parsePeriodKey, periodKey } from '../budget.calendar.js';
import { BudgetUnavailableError } from '../budget.errors.js';
import { MAX_PERIODS, noLimit, tooManyPeriods, typeOf } from '../budget.limits.js';
import {
  arm,
  balanceOf,
  chargedResult,
  copyRecord,
  type Counter,
  counterOf,
  cross,
  type Entry,
  exceededBy,
  isEmpty,
  newRecord,
  newTree,
  nextDueMs,
  type Operation,
  rearm,
  replayReserve,
  balancesAndCrossed,
  reservedResult,
  roomOf,
  sameContent,
  type StoredLimits,
  type Tree,
} from './budget.memory-tree.js';
import { finalizedOf, releasedOf } from '../budget.results.js';
import type {
  Balance,
  BudgetRecord,
  ChargeResult,
  CreditResult,
  ExtendHoldResult,
  FinalizeResult,
  RefundResult,
  SetLimitResult,
  VerifyResult,
} from '../budget.types.js';
import { ANY_NONCE } from '../budget.validate.js';
import { verifySnapshot } from '../budget.verify.js';

/** Budgets in the memory of one process, with the behaviour of the Redis backend. */
export class MemoryBudgetBackend implements BudgetBackend {
  readonly #calendar = new BudgetCalendar();
  readonly #trees = new Map<string, Tree>();
  readonly #clock: Clock;
  readonly #retentionMs: number;

  constructor({ clock = systemClock, retentionMs }: { clock?: Clock | undefined; retentionMs: number }) {
    this.#clock = clock;
    this.#retentionMs = retentionMs;
  }

  async reserve(request: ReserveRequest): Promise<ReserveOutcome> {
    const { tree, nowMs } = this.#open(request);
    const { id, amount, nonce } = request;
    const earlier = tree.operations.get(`o|${id}`);
    const answer = earlier && replayReserve(tree, earlier, request, nowMs);
    if (answer) return answer;
    const entries = this.#entriesOf(tree, request.scopes, nowMs);
    const denial = exceededBy(tree, entries, amount, nowMs);
    if (denial) return denial;
    const generation = earlier ? earlier.record.generation + 1 : 1;
    if (earlier) makeRoomForNext(tree, earlier);
    const record: BudgetRecord<bigint> = {
      ...newRecord(request, nowMs),
      kind: 'hold',
      state: 'pending',
      generation,
      expiresAtMs: nowMs + request.ttlMs,
      meta: request.meta === '' ? undefined : (JSON.parse(request.meta) as unknown),
    };
    const operation = { name: `o|${id}`, nonce, record, entries, crossed: [] };
    this.#addRoot(request, tree);
    this.#count(tree, operation, true, (counter) => (counter.reserved += amount));
    this.#scheduleWindows(tree, entries, nowMs);
    tree.operations.set(operation.name, operation);
    tree.pending.set(id, record.expiresAtMs);
    return reservedResult(tree, operation, false);
  }

  async charge(request: ChargeRequest): Promise<ChargeResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { id, amount, mode } = request;
    const earlier = tree.operations.get(`o|${id}`);
    if (earlier && !sameContent(earlier, 'charge', request))
      return { ok: false, reason: 'conflict', record: copyRecord(earlier) };
    if (earlier) return chargedResult(tree, earlier, true);
    const entries = this.#entriesOf(tree, request.scopes, nowMs);
    const denial = mode === 'enforce' ? exceededBy(tree, entries, amount, nowMs) : undefined;
    if (denial) return denial;
    const room = roomOf(tree, entries);
    const record: BudgetRecord<bigint> = {
      ...newRecord(request, nowMs),
      kind: 'charge',
      state: 'finalized',
      generation: 1,
      actual: amount,
      committed: amount,
      uncovered: room === undefined || room >= amount ? 0n : amount - room,
      expiresAtMs: nowMs,
      endedAtMs: nowMs,
      meta: undefined,
    };
    const operation = { name: `o|${id}`, nonce: ANY_NONCE, record, entries, crossed: [] };
    this.#addRoot(request, tree);
    this.#count(tree, operation, true, (counter) => (counter.committed += amount));
    tree.operations.set(operation.name, operation);
    this.#end(tree, operation, nowMs);
    return chargedResult(tree, operation, false);
  }

  async finalize(request: FinalizeRequest): Promise<FinalizeResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { actual, overage, late } = request;
    const operation = find(tree, request);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record, entries } = operation;
    if (record.state === 'aborted') return { ok: false, reason: 'aborted', record: copyRecord(operation) };
    if (record.state === 'finalized')
      return record.actual === actual
        ? { ...finalizedOf(record, record, true), ...balancesAndCrossed(tree, operation) }
        : { ok: false, reason: 'conflict', record: copyRecord(operation) };

    const isLate = record.state === 'expired';
    const inHold = isLate ? 0n : record.amount;
    const extra = actual > inHold ? actual - inHold : 0n;
    const room = roomOf(tree, entries);
    const covered = room === undefined || room > extra ? extra : room;
    if (isLate && (late === 'reject' || (late === 'if-available' && covered < extra)))
      return { ok: false, reason: 'expired', record: copyRecord(operation) };
    const isOver = actual > record.amount;
    if (isOver && overage === 'reject')
      return { ok: false, reason: 'overage_rejected', record: copyRecord(operation) };
    const capped = inHold + covered > record.amount ? inHold + covered : record.amount;
    const committed = isOver && overage === 'cap' ? capped : actual;

    Object.assign(record, {
      state: 'finalized',
      actual,
      committed,
      uncovered: extra - covered,
      late: isLate,
    });
    // A cost that is not above the hold does not raise the usage, so it crosses no threshold.
    this.#count(tree, operation, committed > inHold, (counter) => {
      counter.reserved -= inHold;
      counter.committed += committed;
    });
    this.#end(tree, operation, nowMs);
    return { ...finalizedOf(record, record, false), ...balancesAndCrossed(tree, operation) };
  }

  async abort(request: HoldRequest): Promise<AbortOutcome> {
    const { tree, nowMs } = this.#open(request);
    const operation = find(tree, request);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record } = operation;
    const { state, generation } = record;
    if (state === 'finalized') return { ok: false, reason: state, record: copyRecord(operation) };
    if (state === 'expired' && isRenewed(operation))
      return { ok: false, reason: state, record: copyRecord(operation) };
    const replayed = state === 'aborted';
    if (!replayed) {
      const inHold = state === 'pending' ? record.amount : 0n;
      for (const entry of operation.entries) {
        arm(tree, entry);
        counterOf(tree, entry.field).reserved -= inHold;
      }
      Object.assign(record, { state: 'aborted', late: state === 'expired' });
      this.#end(tree, operation, nowMs);
    }
    return { ok: true, status: 'aborted', generation, released: releasedOf(record), replayed };
  }

  async extend(request: ExtendRequest): Promise<ExtendHoldResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const operation = find(tree, request);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record } = operation;
    if (record.state !== 'pending') return { ok: false, reason: record.state, record: copyRecord(operation) };
    record.expiresAtMs = nowMs + request.ttlMs;
    tree.pending.set(record.id, record.expiresAtMs);
    return { ok: true, status: 'extended', expiresAtMs: record.expiresAtMs };
  }

  async refund(request: RefundRequest): Promise<RefundResult<bigint>> {
    const { tree, nowMs } = this.#open(request);
    const { id, amount, refundId } = request;
    const operation = find(tree, request);
    if (!operation) return { ok: false, reason: 'not_found' };
    const { record } = operation;
    const content = `${amount} ${record.generation} ${id}`;
    const earlier = tree.refunds.get(refundId);
    if (earlier !== undefined && earlier !== content) return { ok: false, reason: 'conflict' };
    if (record.state !== 'finalized')
      return { ok: false, reason: record.state, record: copyRecord(operation) };
    if (earlier === undefined) {
      if (amount > record.committed - record.refunded)
        return { ok: false, reason: 'exceeds_committed', record: copyRecord(operation) };
      record.refunded += amount;
      for (const entry of operation.entries) {
        arm(tree, entry);
        counterOf(tree, entry.field).committed -= amount;
      }
      this.#scheduleWindows(tree, operation.entries, nowMs);
      tree.refunds.set(refundId, content);
      tree.garbage.set(`r|${refundId}`, nowMs + this.#retentionMs);
    }
    const { balances } = balancesAndCrossed(tree, operation);
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
      this.#addRoot(request, tree);
      arm(tree, entry);
      counterOf(tree, entry.field).credits += amount;
      if (amount > 0n) rearm(tree, entry);
      this.#scheduleWindows(tree, [entry], nowMs);
      tree.credits.set(id, content);
      tree.garbage.set(`k|${id}`, nowMs + this.#retentionMs);
    }
    return { ok: true, status: 'credited', replayed: earlier !== undefined, balance: balanceOf(tree, entry) };
  }

  async setLimit(request: SetLimitRequest): Promise<SetLimitResult> {
    const { tree } = this.#open(request);
    const { scope, period, limit } = request;
    const limits: StoredLimits = new Map(tree.limits.get(scope));
    if (limit === null) limits.delete(periodKey(period));
    else limits.set(periodKey(period), limit);
    if (limits.size > MAX_PERIODS) throw tooManyPeriods(scope);
    if (limits.size === 0) tree.limits.delete(scope);
    else {
      this.#addRoot(request, tree);
      tree.limits.set(scope, limits);
    }
    return { ok: true, status: limit === null ? 'cleared' : 'set' };
  }

  async balance(request: BalanceRequest): Promise<Balance<bigint>[]> {
    const { tree, nowMs } = this.#open(request);
    return this.#entriesOf(tree, [request.scope], nowMs).map((entry) => balanceOf(tree, entry));
  }

  async get(request: HoldRequest): Promise<BudgetRecord<bigint> | null> {
    const operation = find(this.#open(request).tree, request);
    return operation ? copyRecord(operation) : null;
  }

  async list(request: ListRequest): Promise<{ records: BudgetRecord<bigint>[]; cursor: string | null }> {
    const { tree } = this.#open(request);
    const operations = [...tree.operations.values()];
    const from = Number(request.cursor ?? 0);
    const to = from + request.limit;
    return {
      records: operations.slice(from, to).map(copyRecord),
      cursor: to < operations.length ? String(to) : null,
    };
  }

  async reap(request: ReapRequest): Promise<ReapStep> {
    const { tree, nowMs } = this.#open(request);
    const expired = tree.unreported.splice(0, request.max);
    let purged = 0;
    for (let left = request.max; left > 0; left--) {
      const due = tree.garbage.take(nowMs);
      if (!due) break;
      if (this.#purge(tree, due.name, nowMs)) purged++;
    }
    if (isEmpty(tree)) this.#trees.delete(request.root);
    return { expired, purged, nextInMs: nextDueMs(tree, nowMs) };
  }

  async verify(request: { root: string; signal?: AbortSignal | undefined }): Promise<VerifyResult> {
    const { tree } = this.#open(request);
    return verifySnapshot({
      counters: tree.counters,
      operations: [...tree.operations.values()].map((operation) => ({
        ...operation.record,
        isRenewed: isRenewed(operation),
        fields: operation.entries.map(({ field }) => field),
      })),
      pending: new Set(tree.pending.names()),
    });
  }

  /** Opens a root at the current time, after settling its expired holds. */
  #open({ root, signal }: { root: string; signal?: AbortSignal | undefined }): { tree: Tree; nowMs: number } {
    refuseAborted(signal, BudgetUnavailableError);
    const tree = this.#trees.get(root) ?? newTree();
    const nowMs = this.#clock.now();
    this.#expire(tree, nowMs);
    return { tree, nowMs };
  }

  /** Stores a root at its first write. Reading a root that is not in use leaves nothing behind. */
  #addRoot({ root }: { root: string }, tree: Tree): void {
    this.#trees.set(root, tree);
  }

  #expire(tree: Tree, nowMs: number): void {
    for (let due = tree.pending.take(nowMs); due; due = tree.pending.take(nowMs)) {
      const operation = tree.operations.get(`o|${due.name}`) as Operation;
      const { record, entries } = operation;
      record.state = 'expired';
      record.endedAtMs = record.expiresAtMs;
      tree.unreported.push(due.name);
      for (const entry of entries) counterOf(tree, entry.field).reserved -= record.amount;
      tree.garbage.set(operation.name, record.expiresAtMs + this.#retentionMs);
      this.#scheduleWindows(tree, entries, record.expiresAtMs);
    }
  }

  /** Returns an entry for every limit of these scopes, configured or set by setLimit. */
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

  /** Changes the counters of an operation. If `crosses`, it records the thresholds that the change has crossed. */
  #count(tree: Tree, operation: Operation, crosses: boolean, change: (counter: Counter) => void): void {
    operation.crossed = operation.entries.flatMap((entry) => {
      arm(tree, entry);
      const counter = counterOf(tree, entry.field);
      change(counter);
      return crosses ? cross(tree, entry, counter) : [];
    });
  }

  #end(tree: Tree, operation: Operation, nowMs: number): void {
    const { name, record, entries } = operation;
    record.endedAtMs = nowMs;
    this.#scheduleWindows(tree, entries, nowMs);
    tree.garbage.set(name, nowMs + this.#retentionMs);
    if (!isRenewed(operation)) tree.pending.delete(record.id);
  }

  /** Schedules the counters of these windows for purging, a moment after the last operation that uses them. */
  #scheduleWindows(tree: Tree, entries: readonly Entry[], fromMs: number): void {
    for (const { field, window } of entries) {
      if (window.endMs === null) continue;
      const atMs = Math.max(window.endMs, fromMs) + this.#retentionMs + 1;
      if (atMs > (tree.garbage.at(`c|${field}`) ?? 0)) tree.garbage.set(`c|${field}`, atMs);
    }
  }

  /** Purges one record or counter. Returns false if it is still needed. */
  #purge(tree: Tree, name: string, nowMs: number): boolean {
    const rest = name.slice(2);
    if (name.startsWith('r|')) return tree.refunds.delete(rest);
    if (name.startsWith('k|')) return tree.credits.delete(rest);
    if (!name.startsWith('c|')) return purgeOperation(tree, name);
    if (tree.counters.get(rest)?.reserved) {
      tree.garbage.set(name, nowMs + this.#retentionMs);
      return false;
    }
    return tree.counters.delete(rest);
  }
}

const isRenewed = ({ name }: Operation): boolean => name.startsWith('O|');

/** Returns the operation that a call refers to. */
function find(tree: Tree, { id, generation, nonce }: HoldRequest): Operation | undefined {
  const newest = tree.operations.get(`o|${id}`);
  if (!newest) return undefined;
  const isNewest = generation === 0 || generation === newest.record.generation;
  const operation = isNewest ? newest : tree.operations.get(`O|${generation}|${id}`);
  return nonce === ANY_NONCE || operation?.nonce === nonce ? operation : undefined;
}

/** Renames an operation, so that the next generation can take its id. */
function makeRoomForNext(tree: Tree, operation: Operation): void {
  const { name, record } = operation;
  operation.name = `O|${record.generation}|${record.id}`;
  tree.operations.delete(name);
  tree.operations.set(operation.name, operation);
  tree.garbage.set(operation.name, tree.garbage.at(name) as number);
  tree.garbage.delete(name);
}

function purgeOperation(tree: Tree, name: string): boolean {
  const operation = tree.operations.get(name) as Operation;
  const { record, entries } = operation;
  // The newest operation of an id is kept as long as any older one. Otherwise the next hold of the id would have
  // generation 1 again, while older generations are still stored.
  for (let older = isRenewed(operation) ? 0 : record.generation - 1; older > 0; older--) {
    const olderUntilMs = tree.garbage.at(`O|${older}|${record.id}`);
    if (olderUntilMs === undefined) continue;
    tree.garbage.set(name, olderUntilMs);
    for (const { field } of entries) {
      const untilMs = tree.garbage.at(`c|${field}`);
      if (untilMs !== undefined && untilMs <= olderUntilMs) tree.garbage.set(`c|${field}`, olderUntilMs + 1);
    }
    return false;
  }
  // The counters keep the committed sum of a purged operation, so that verify still adds up.
  for (const { field } of entries) {
    const counter = tree.counters.get(field);
    if (counter) counter.archived += record.committed - record.refunded;
  }
  return tree.operations.delete(name);
}
