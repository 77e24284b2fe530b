import { pageOfNames, type ResolvedPageOptions } from '../../core/page.js';
import { refuseAborted } from '../../core/validate.js';
import { type Clock, systemClock } from '../../core/clock.js';
import type * as port from '../budget.backend.js';
import { BudgetUnavailableError } from '../budget.errors.js';
import { tooLarge } from '../budget.limits.js';
import { MAX_AMOUNT } from '../budget.results.js';
import * as garbage from './budget.memory-garbage.js';
import {
  answer,
  copyRecord,
  find,
  isRenewed,
  newestOf,
  newOperation,
  refused,
  replayReserve,
  sameContent,
} from './budget.memory-operation.js';
import { type Entry, limitName, Tree } from './budget.memory-tree.js';
import type { CreditResult, RefundResult, SetLimitResult } from '../budget.types.js';
import { verifySnapshot } from '../budget.verify.js';

/** Budgets in the memory of one process, with the behaviour of the Redis backend. */
export class MemoryBudgetBackend implements port.BudgetBackend {
  readonly #trees = new Map<string, Tree>();

  constructor(
    private readonly config: { readonly clock?: Clock | undefined; readonly retentionMs: number },
  ) {}

  async reserve(request: port.ReserveRequest) {
    const tree = this.#open(request);
    const { root, id, amount, ttlMs, meta } = request;
    const earlier = newestOf(tree, id);
    const replay = earlier && replayReserve(tree, earlier, request);
    if (replay) return replay;
    const entries = tree.entriesOf(request.scopes);
    const denial = tree.exceededBy(entries, amount);
    if (denial) return denial;
    if (earlier) garbage.makeRoomForNext(tree, earlier);
    const expiresAtMs = tree.nowMs + ttlMs;
    const operation = newOperation(tree, request, entries, {
      generation: earlier ? earlier.record.generation + 1 : 1,
      expiresAtMs,
      meta: meta === '' ? undefined : (JSON.parse(meta) as unknown),
    });
    this.#trees.set(root, tree);
    tree.count(entries, (counter) => (counter.reserved += amount));
    operation.crossed = tree.crossedBy(entries, amount);
    tree.operations.set(operation.name, operation);
    tree.pending.set(id, expiresAtMs);
    return answer(tree, operation, false);
  }

  async charge(request: port.ChargeRequest) {
    const tree = this.#open(request);
    const { root, id, amount, mode, idTtlMs } = request;
    const earlier = newestOf(tree, id);
    if (earlier && !sameContent(earlier, 'charge', request)) return refused(earlier, 'conflict');
    if (earlier) return answer(tree, earlier, true);
    const entries = tree.entriesOf(request.scopes);
    const denial = mode === 'enforce' ? tree.exceededBy(entries, amount) : undefined;
    if (denial) return denial;
    const uncovered = amount - tree.coveredOf(entries, amount);
    const facts = {
      kind: 'charge',
      state: 'finalized',
      actual: amount,
      committed: amount,
      uncovered,
    } as const;
    const operation = newOperation(tree, request, entries, facts);
    this.#trees.set(root, tree);
    const isAtMax = tree.commit(entries, amount);
    operation.crossed = tree.crossedBy(entries, amount);
    tree.operations.set(operation.name, operation);
    garbage.end(tree, operation);
    garbage.keepOperation(tree, operation, idTtlMs);
    return answer(tree, operation, false, isAtMax);
  }

  async finalize(request: port.FinalizeRequest) {
    const tree = this.#open(request);
    const { actual, overage, late, idTtlMs } = request;
    const operation = find(tree, request);
    if (!operation) return NOT_FOUND;
    const { record, entries } = operation;
    if (record.state === 'aborted') return refused(operation, 'aborted');
    if (record.state === 'finalized')
      return record.actual === actual ? answer(tree, operation, true) : refused(operation, 'conflict');

    const isLate = record.state === 'expired';
    const inHold = isLate ? 0 : record.amount;
    const extra = Math.max(0, actual - inHold);
    const covered = tree.coveredOf(entries, extra);
    if (isLate && (late === 'reject' || (late === 'if-available' && covered < extra)))
      return refused(operation, 'expired');
    const isOver = actual > record.amount;
    if (isOver && overage === 'reject') return refused(operation, 'overage_rejected');
    const committed = isOver && overage === 'cap' ? Math.max(inHold + covered, record.amount) : actual;
    const uncovered = extra - covered;
    Object.assign(record, { state: 'finalized', actual, committed, uncovered, late: isLate });
    tree.count(entries, (counter) => (counter.reserved -= inHold));
    const isAtMax = tree.commit(entries, committed);
    // A cost that is not above the hold does not raise the usage, so it crosses no threshold.
    operation.crossed = committed > inHold ? tree.crossedBy(entries, committed - inHold) : [];
    garbage.end(tree, operation);
    garbage.keepOperation(tree, operation, idTtlMs);
    return answer(tree, operation, false, isAtMax);
  }

  async abort(request: port.HoldRequest) {
    const tree = this.#open(request);
    const operation = find(tree, request);
    if (!operation) return NOT_FOUND;
    const { record, entries } = operation;
    const { state } = record;
    if (state === 'finalized' || (state === 'expired' && isRenewed(operation)))
      return refused(operation, state);
    if (state === 'aborted') return answer(tree, operation, true);
    const inHold = state === 'pending' ? record.amount : 0;
    tree.count(entries, (counter) => (counter.reserved -= inHold));
    Object.assign(record, { state: 'aborted', late: state === 'expired' });
    garbage.end(tree, operation);
    return answer(tree, operation, false);
  }

  async extend(request: port.ExtendRequest) {
    const tree = this.#open(request);
    const operation = find(tree, request);
    if (!operation) return NOT_FOUND;
    const { record } = operation;
    if (record.state !== 'pending') return refused(operation, record.state);
    const expiresAtMs = tree.nowMs + request.ttlMs;
    record.expiresAtMs = expiresAtMs;
    tree.pending.set(record.id, expiresAtMs);
    return answer(tree, operation, false);
  }

  async refund(request: port.RefundRequest): Promise<port.Outcome<RefundResult>> {
    const tree = this.#open(request);
    const { id, amount, refundId } = request;
    const operation = find(tree, request);
    if (!operation) return NOT_FOUND;
    const { record, entries } = operation;
    const content = `${amount} ${record.generation} ${id}`;
    const earlier = tree.kept.get(`r|${refundId}`);
    let isAtMax = false;
    if (earlier !== undefined && earlier !== content) return { ok: false, reason: 'conflict' };
    if (record.state !== 'finalized') return refused(operation, record.state);
    if (earlier === undefined) {
      if (amount > record.committed - record.refunded) return refused(operation, 'exceeds_committed');
      record.refunded += amount;
      isAtMax = tree.commit(entries, -amount);
      // An operation whose record is purged counts in the sum of those.
      if (operation.isPurged)
        tree.count(entries, (counter) => (counter.archived = Math.max(0, counter.archived - amount)));
      // The operation is known for as long as its refund, so that a repeated call finds both.
      garbage.keepOperation(tree, operation);
      tree.kept.set(`r|${refundId}`, garbage.keptUntilMs(tree, entries), content);
    }
    return answer(tree, operation, earlier !== undefined, isAtMax);
  }

  async credit(request: port.CreditRequest): Promise<CreditResult> {
    const tree = this.#open(request);
    const { root, id, amount, scope } = request;
    const [entry] = tree.entriesOf([scope]) as [Entry];
    const content = `${amount} ${limitName(entry.scope, entry.period)}`;
    const earlier = tree.kept.get(`k|${id}`);
    if (earlier !== undefined && earlier !== content) return { ok: false, reason: 'conflict' };
    if (earlier === undefined) {
      const { limit, credits } = tree.balanceOf(entry);
      if (amount > MAX_AMOUNT - (limit === 'unlimited' ? 0 : limit) - credits) throw tooLarge();
      this.#trees.set(root, tree);
      tree.count([entry], (counter) => (counter.credits += amount));
      tree.kept.set(`k|${id}`, garbage.keptUntilMs(tree, [entry]), content);
    }
    return { ok: true, status: 'credited', replayed: earlier !== undefined, balance: tree.balanceOf(entry) };
  }

  async setLimit(request: port.SetLimitRequest): Promise<SetLimitResult> {
    const tree = this.#open(request);
    const { root, scope, limit } = request;
    const [entry] = tree.entriesOf([scope]) as [Entry];
    const { credits } = tree.balanceOf(entry);
    if (typeof limit === 'number' && limit > MAX_AMOUNT - credits) throw tooLarge();
    const name = limitName(entry.scope, entry.period);
    if (limit === null) tree.limits.delete(name);
    else {
      this.#trees.set(root, tree);
      tree.limits.set(name, limit);
    }
    return { ok: true, status: limit === null ? 'cleared' : 'set' };
  }

  async balance(request: port.BalanceRequest) {
    const tree = this.#open(request);
    return tree.entriesOf([request.scope]).map((entry) => tree.balanceOf(entry));
  }

  async get(request: port.HoldRequest) {
    const operation = find(this.#open(request), request);
    return operation ? copyRecord(operation) : null;
  }

  async list(request: port.ListRequest) {
    const operations = [...this.#open(request).operations.values()];
    const from = Number(request.cursor ?? 0);
    const to = from + request.limit;
    const cursor = to < operations.length ? String(to) : null;
    return { records: operations.slice(from, to).map(copyRecord), cursor };
  }

  async reap(request: port.ReapRequest): Promise<port.ReapStep> {
    const tree = this.#open(request);
    const expired = tree.unreported.splice(0, request.max);
    const purged = garbage.purgeDue(tree, request.max);
    if (garbage.isEmpty(tree)) this.#trees.delete(request.root);
    return { expired, purged, quarantined: [], nextInMs: garbage.nextDueMs(tree) };
  }

  async allRoots(page: ResolvedPageOptions) {
    refuseAborted(page.signal, BudgetUnavailableError);
    return pageOfNames(this.#trees.keys(), page);
  }

  async scopes(root: string, page: ResolvedPageOptions) {
    const fields = [...this.#open({ root, signal: page.signal }).counters.keys()];
    return pageOfNames(new Set(fields.map((field) => field.split('|').slice(0, -2).join('|'))), page);
  }

  /** It knows its roots, and what there is to do in them. */
  async roots({ max }: port.RootsRequest) {
    const roots: string[] = [];
    for (const root of this.#trees.keys()) {
      if (roots.length === max) break;
      const tree = this.#open({ root });
      if (garbage.isEmpty(tree) || garbage.nextDueMs(tree) === 0) roots.push(root);
    }
    return { untilMs: 0, roots };
  }

  async verify(request: port.Request) {
    const { counters, operations, pending } = this.#open(request);
    return verifySnapshot({
      counters,
      operations: [...operations.values()].map((operation) => ({
        ...operation.record,
        isRenewed: isRenewed(operation),
        fields: operation.entries.map(({ field }) => field),
      })),
      pending: { has: (id) => pending.at(id) !== undefined },
      quarantined: [],
    });
  }

  /**
   * Opens a root at the current time, after settling its expired holds. It is stored at its first write, so that
   * reading a root that is not in use leaves nothing behind.
   */
  #open({ root, signal }: port.Request): Tree {
    refuseAborted(signal, BudgetUnavailableError);
    const { clock = systemClock, retentionMs } = this.config;
    const tree = this.#trees.get(root) ?? new Tree(retentionMs);
    tree.nowMs = clock.now();
    garbage.expireDue(tree);
    return tree;
  }
}

const NOT_FOUND = { ok: false, reason: 'not_found' } as const;
