/**
 * A reference model of budgets: a list of operations, and sums over it. It has no counters that could drift.
 * Its time is in ticks. Windows end at ticks. Holds and retention end between two ticks, so that a real
 * clock, which continues after each tick, changes no result.
 */

export const TICK_MS = 10 * 60_000;
/** The instant of the first tick. It is in January, so that New York is always five hours behind. */
export const FIRST_TICK_MS = Date.parse('2027-01-15T00:00:00Z');
/** Retention ends between 14 and 15 ticks after an end, and between 15 and 16 after an expiry. */
export const RETENTION_MS = 14.75 * TICK_MS;
/** An id is kept for between 40 and 41 ticks after a charge or a finalize. */
export const ID_TTL_MS = 40.75 * TICK_MS;
const LIFETIME_IDS_MS = 400 * 86_400_000;
/** A hold of n ticks expires half a tick after the n-th tick. */
export const ttlMsOf = (ticks: number): number => (ticks + 0.5) * TICK_MS;

export type PeriodName = 'lifetime' | 'hour' | 'day@America/New_York' | 'window:14400000';
export type Limit = number | 'unlimited';

export interface ModelLimit {
  readonly scope: string;
  readonly period: PeriodName;
  readonly limit: Limit;
  readonly thresholds: readonly number[];
}

interface Window {
  readonly scope: string;
  readonly period: PeriodName;
  readonly thresholds: readonly number[];
  readonly startMs: number;
  readonly endMs: number | null;
  readonly field: string;
}

export interface ModelOperation {
  readonly id: string;
  readonly generation: number;
  readonly kind: 'hold' | 'charge';
  state: 'pending' | 'finalized' | 'aborted' | 'expired';
  readonly amount: number;
  readonly scopes: readonly string[];
  readonly windows: readonly Window[];
  expiryTick: number;
  purgeTick: number;
  actual: number;
  committed: number;
  refunded: number;
  uncovered: number;
  late: boolean;
  crossed: object[];
}

const HOUR_MS = 3_600_000;
const LENGTH_AND_PHASE_MS: Record<Exclude<PeriodName, 'lifetime'>, [length: number, phase: number]> = {
  hour: [HOUR_MS, 0],
  'day@America/New_York': [24 * HOUR_MS, 5 * HOUR_MS],
  'window:14400000': [4 * HOUR_MS, 0],
};

const { max, min } = Math;
const typeOf = (scope: string): string => scope.replace(/:.*/, '');

export class BudgetModel {
  tick = 0;
  latestTick = 0;
  /** The generations of each id, the newest last. */
  readonly operations = new Map<string, ModelOperation[]>();
  /** What is kept of ids: `o` with a finalized operation, `r` of a refund and `k` of a credit with its content. */
  readonly kept = new Map<string, { operation?: ModelOperation; content?: string; untilMs: number }>();
  readonly #creditSums = new Map<string, number>();
  readonly #set = new Map<string, Limit>();
  readonly #crossed = new Map<string, number>();
  /** What the thresholds of a window were last checked against. */
  readonly #seen = new Map<string, { set: Limit | undefined; credits: number }>();
  /** The committed sums of purged operations. */
  readonly #forgotten = new Map<string, number>();
  #untold: string[] = [];

  constructor(private readonly limits: readonly ModelLimit[]) {}

  get nowMs(): number {
    return FIRST_TICK_MS + this.tick * TICK_MS;
  }

  /** The clock never goes back over the end of an id. */
  mayJump(ticks: number): boolean {
    const toMs = this.nowMs + ticks * TICK_MS;
    return ![...this.kept.values()].some(({ untilMs }) => untilMs > toMs && untilMs <= this.nowMs);
  }

  /** The clock goes back by a few ticks at most, so that no purged window opens again. */
  jump(ticks: number): void {
    this.tick = Math.max(this.latestTick - 2, 0, this.tick + ticks);
    this.latestTick = Math.max(this.latestTick, this.tick);
  }

  /** How a body ends on a hold, with the result of its run and its cost. */
  run(id: string, scopes: string[], amount: number, ticks: number, end: BodyEnd): object {
    this.#expire();
    if (this.#newest(id)?.state === 'pending') return { ok: false, reason: 'pending' };
    const held = max(1, amount);
    const reserved = this.reserve(id, scopes, held, ticks, true) as { ok: boolean };
    if (!reserved.ok)
      return 'violations' in reserved ? { ...reserved, ...this.waitFor(scopes, held) } : reserved;
    const cost = costOf(end, held);
    if (cost === 'abort') this.abort(id);
    else this.finalize(id, cost, 'record', 'record');
    return { ok: true, ended: end.how };
  }

  reserve(id: string, scopes: string[], amount: number, ticks: number, renew: boolean): object {
    this.#expire();
    const earlier = this.#newest(id, !renew);
    if (earlier && earlier.state !== 'pending') return { ok: false, reason: `already_${earlier.state}` };
    if (earlier && !same(earlier, 'hold', scopes, amount)) return { ok: false, reason: 'conflict' };
    if (earlier) return this.#reserved(earlier, true);
    const windows = this.#windowsOf(scopes);
    const exceeded = this.#exceeded(windows, amount);
    if (exceeded) return exceeded;
    const operation = this.#open(id, 'hold', scopes, windows, amount);
    operation.expiryTick = this.tick + ticks + 1;
    operation.crossed = this.#cross(operation.windows, amount);
    return this.#reserved(operation, false);
  }

  charge(id: string, scopes: string[], amount: number, mode: 'enforce' | 'record'): object {
    this.#expire();
    const earlier = this.#newest(id);
    if (earlier && !same(earlier, 'charge', scopes, amount)) return { ok: false, reason: 'conflict' };
    if (earlier) return this.#charged(earlier, true);
    const windows = this.#windowsOf(scopes);
    const exceeded = mode === 'enforce' && this.#exceeded(windows, amount);
    if (exceeded) return exceeded;
    const uncovered = max(0, amount - min(amount, this.#room(windows, amount)));
    const operation = this.#open(id, 'charge', scopes, windows, amount);
    Object.assign(operation, { state: 'finalized', actual: amount, committed: amount, uncovered });
    operation.purgeTick = this.tick + 15;
    operation.crossed = this.#cross(windows, amount);
    this.#keep(operation, ID_TTL_MS);
    return this.#charged(operation, false);
  }

  finalize(id: string, actual: number, overage: string, late: string, generation?: number): object {
    this.#expire();
    const operation = this.#find(id, generation);
    if (!operation) return { ok: false, reason: 'not_found' };
    if (operation.state === 'aborted') return { ok: false, reason: 'aborted' };
    if (operation.state === 'finalized' && operation.actual !== actual)
      return { ok: false, reason: 'conflict' };
    if (operation.state === 'finalized') return this.#finalized(operation, true);

    const isLate = operation.state === 'expired';
    const own = isLate ? 0 : operation.amount;
    const beyond = max(0, actual - own);
    const fitting = min(beyond, this.#room(operation.windows, beyond));
    if (isLate && (late === 'reject' || (late === 'if-available' && fitting < beyond)))
      return { ok: false, reason: 'expired' };
    if (actual > operation.amount && overage === 'reject') return { ok: false, reason: 'overage_rejected' };
    operation.committed =
      actual > operation.amount && overage === 'cap' ? max(operation.amount, own + fitting) : actual;
    Object.assign(operation, { state: 'finalized', actual, uncovered: beyond - fitting, late: isLate });
    this.#end(operation);
    operation.crossed =
      operation.committed > own ? this.#cross(operation.windows, operation.committed - own) : [];
    this.#keep(operation, ID_TTL_MS);
    return this.#finalized(operation, false);
  }

  abort(id: string, generation?: number): object {
    this.#expire();
    const operation = this.#find(id, generation);
    if (!operation) return { ok: false, reason: 'not_found' };
    if (operation.state === 'finalized') return { ok: false, reason: 'finalized' };
    if (operation.state === 'expired' && operation !== this.#newest(id))
      return { ok: false, reason: 'expired' };
    const replayed = operation.state === 'aborted';
    if (!replayed) {
      Object.assign(operation, { late: operation.state === 'expired', state: 'aborted' });
      this.#end(operation);
    }
    return { ok: true, status: 'aborted', released: operation.late ? 0 : operation.amount, replayed };
  }

  extend(id: string, ticks: number, generation?: number): object {
    this.#expire();
    const operation = this.#find(id, generation);
    if (!operation) return { ok: false, reason: 'not_found' };
    if (operation.state !== 'pending') return { ok: false, reason: operation.state };
    operation.expiryTick = this.tick + ticks + 1;
    return { ok: true, status: 'extended' };
  }

  refund(id: string, amount: number, refundId: string, generation?: number): object {
    this.#expire();
    const operation = this.#find(id, generation);
    if (!operation) return { ok: false, reason: 'not_found' };
    const earlier = this.#keptAt(`r ${refundId}`);
    const content = `${id} ${operation.generation} ${amount}`;
    if (earlier && earlier.content !== content) return { ok: false, reason: 'conflict' };
    if (operation.state !== 'finalized') return { ok: false, reason: operation.state };
    if (!earlier && operation.refunded + amount > operation.committed)
      return { ok: false, reason: 'exceeds_committed' };
    if (!earlier) {
      operation.refunded += amount;
      if (!this.#all().includes(operation))
        for (const { field } of operation.windows) this.#forget(field, -amount);
      this.#keep(operation);
      this.kept.set(`r ${refundId}`, { content, untilMs: this.nowMs + this.#keepMs(operation.windows) });
    }
    const balances = this.#balances(operation.windows);
    return {
      ok: true,
      status: 'refunded',
      amount,
      refunded: operation.refunded,
      replayed: Boolean(earlier),
      balances,
    };
  }

  credit(id: string, scope: string, period: PeriodName, amount: number): object {
    this.#expire();
    const earlier = this.#keptAt(`k ${id}`);
    const content = `${scope} ${period} ${amount}`;
    if (earlier && earlier.content !== content) return { ok: false, reason: 'conflict' };
    const window = this.#windowsOf([scope]).find((each) => each.period === period) as Window;
    if (!earlier) {
      this.#creditSums.set(window.field, this.#creditOf(window) + amount);
      this.kept.set(`k ${id}`, { content, untilMs: this.nowMs + this.#keepMs([window]) });
    }
    return { ok: true, status: 'credited', replayed: Boolean(earlier), balance: this.#balance(window) };
  }

  setLimit(scope: string, period: PeriodName, limit: Limit | null): object {
    this.#expire();
    if (limit === null) this.#set.delete(`${scope} ${period}`);
    else this.#set.set(`${scope} ${period}`, limit);
    return { ok: true, status: limit === null ? 'cleared' : 'set' };
  }

  balance(scope: string): object[] {
    this.#expire();
    return this.#balances(this.#windowsOf([scope]));
  }

  get(id: string, generation?: number): object | null {
    const operation = this.#find(id, generation);
    if (!operation) return null;
    const { state, expiryTick, kind, amount, actual, committed, refunded, uncovered, scopes } = operation;
    const shown = state === 'pending' && expiryTick <= this.tick ? 'expired' : state;
    return {
      id,
      generation: operation.generation,
      kind,
      state: shown,
      amount,
      actual,
      committed,
      refunded,
      uncovered,
      scopes,
    };
  }

  /** The ids that were reported as expired. */
  reap(): string[] {
    this.#expire();
    const told = this.#untold;
    this.#untold = [];
    for (const operation of this.#all()) {
      const { id, state, purgeTick, windows, committed, refunded } = operation;
      if (state === 'pending' || purgeTick > this.tick) continue;
      // The newest operation is remembered as long as any older one, even if it is no longer the newest by then.
      const generations = this.operations.get(id) ?? [];
      const older = operation === generations.at(-1) ? generations.slice(0, -1) : [];
      const kept = older.findLast((each) => each.purgeTick > this.tick);
      if (kept) {
        operation.purgeTick = kept.purgeTick;
        continue;
      }
      const left = this.operations.get(id)?.filter((each) => each !== operation) ?? [];
      if (left.length === 0) this.operations.delete(id);
      else this.operations.set(id, left);
      operation.crossed = [];
      for (const { field } of windows) this.#forget(field, committed - refunded);
    }
    return told;
  }

  /**
   * When a request fits, by trying: now if all holds end without a cost, and then at the end of each window. The holds have
   * ended by then, and nothing else was spent.
   */
  waitFor(scopes: string[], amount: number): { status: number; retryAfter: number | undefined } {
    const windows = this.#windowsOf(scopes);
    const times = [this.nowMs + 1_000, ...windows.flatMap(({ endMs }) => endMs ?? [])].sort((a, b) => a - b);
    const atMs = times.find((each) => this.#fitsAt(windows, amount, each, false));
    return atMs === undefined
      ? { status: 402, retryAfter: undefined }
      : { status: 429, retryAfter: (atMs - this.nowMs) / 1_000 };
  }

  /** Whether an amount fits at an instant. Until then nothing else is spent, and pending holds end or stay. */
  #fitsAt(windows: readonly Window[], amount: number, atMs: number, holdsStay: boolean): boolean {
    return windows.every((window) => {
      const { limit, credits, committed, reserved } = this.#balance(window);
      if (limit === 'unlimited') return true;
      const isOver = window.endMs !== null && window.endMs <= atMs;
      return amount <= (isOver ? limit : limit + credits - committed - (holdsStay ? reserved : 0));
    });
  }

  #forget(field: string, amount: number): void {
    this.#forgotten.set(field, (this.#forgotten.get(field) ?? 0) + amount);
  }

  #keepMs(windows: readonly Window[]): number {
    return max(
      RETENTION_MS,
      ...windows.map(({ endMs }) => (endMs === null ? LIFETIME_IDS_MS : endMs - this.nowMs + RETENTION_MS)),
    );
  }

  #keep(operation: ModelOperation, idTtlMs = Infinity): void {
    if (this.operations.has(operation.id) && operation !== this.#newest(operation.id)) return;
    const ms = max(RETENTION_MS, min(this.#keepMs(operation.windows), idTtlMs));
    this.kept.set(`o ${operation.id}`, { operation, untilMs: this.nowMs + ms });
  }

  #keptAt(name: string) {
    const kept = this.kept.get(name);
    return kept && kept.untilMs > this.nowMs ? kept : undefined;
  }

  #expire(): void {
    for (const operation of this.#all()) {
      if (operation.state !== 'pending' || operation.expiryTick > this.tick) continue;
      operation.state = 'expired';
      operation.purgeTick = operation.expiryTick + 15;
      this.#untold.push(operation.id);
    }
  }

  #all(): ModelOperation[] {
    return [...this.operations.values()].flat();
  }

  /** Returns the newest operation of an id. Unless `always` is set, returns none where nothing was spent. */
  #newest(id: string, always = true): ModelOperation | undefined {
    const newest = this.operations.get(id)?.at(-1) ?? this.#keptAt(`o ${id}`)?.operation;
    const isOver = newest?.state === 'aborted' || newest?.state === 'expired';
    return isOver && !always ? undefined : newest;
  }

  #find(id: string, generation?: number): ModelOperation | undefined {
    if (generation === undefined) return this.#newest(id);
    const newest = this.#newest(id);
    if (newest?.generation === generation) return newest;
    return this.operations.get(id)?.find((each) => each.generation === generation);
  }

  #end(operation: ModelOperation): void {
    operation.purgeTick = this.tick + 15;
  }

  #open(
    id: string,
    kind: 'hold' | 'charge',
    scopes: string[],
    windows: Window[],
    amount: number,
  ): ModelOperation {
    const generation = (this.#newest(id)?.generation ?? 0) + 1;
    const operation: ModelOperation = {
      ...{
        id,
        generation,
        kind,
        state: 'pending',
        amount,
        scopes,
        windows,
        expiryTick: this.tick,
        purgeTick: 0,
      },
      ...{ actual: 0, committed: 0, refunded: 0, uncovered: 0, late: false, crossed: [] },
    };
    this.operations.set(id, [...(this.operations.get(id) ?? []), operation]);
    return operation;
  }

  #windowsOf(scopes: string[]): Window[] {
    return scopes.flatMap((scope) => {
      const own = this.limits.filter((limit) => limit.scope === scope);
      const ofType = this.limits.filter((limit) => limit.scope === typeOf(scope) && limit.scope !== scope);
      const others = ofType.filter(({ period }) => !own.some((limit) => limit.period === period));
      return [...own, ...others].map(({ period, thresholds }) => {
        const { startMs, endMs } = this.#windowNow(period);
        return { scope, period, thresholds, startMs, endMs, field: `${scope} ${period} ${startMs}` };
      });
    });
  }

  #windowNow(period: PeriodName): { startMs: number; endMs: number | null } {
    if (period === 'lifetime') return { startMs: 0, endMs: null };
    const [lengthMs, phaseMs] = LENGTH_AND_PHASE_MS[period];
    const startMs = Math.floor((this.nowMs - phaseMs) / lengthMs) * lengthMs + phaseMs;
    return { startMs, endMs: startMs + lengthMs };
  }

  #configured(name: string, period: PeriodName): Limit | undefined {
    return this.limits.find((limit) => limit.scope === name && limit.period === period)?.limit;
  }

  /** The limits of setLimit. */
  #setFor({ scope, period }: Window): Limit | undefined {
    const type = typeOf(scope);
    const hasOwn = this.#configured(scope, period) !== undefined;
    return this.#set.get(`${scope} ${period}`) ?? (hasOwn ? undefined : this.#set.get(`${type} ${period}`));
  }

  #limitOf(window: Window): Limit {
    return this.#setFor(window) ?? this.#configuredFor(window);
  }

  #configuredFor({ scope, period }: Window): Limit {
    return this.#configured(scope, period) ?? this.#configured(typeOf(scope), period) ?? 'unlimited';
  }

  #creditOf(window: Window): number {
    return this.#creditSums.get(window.field) ?? 0;
  }

  #balance(window: Window): {
    limit: Limit;
    credits: number;
    committed: number;
    reserved: number;
    available: Limit;
  } {
    const { field } = window;
    let committed = this.#forgotten.get(field) ?? 0;
    let reserved = 0;
    for (const operation of this.#all()) {
      if (!operation.windows.some((each) => each.field === field)) continue;
      committed += operation.committed - operation.refunded;
      if (operation.state === 'pending') reserved += operation.amount;
    }
    const limit = this.#limitOf(window);
    const credits = this.#creditOf(window);
    const available = limit === 'unlimited' ? limit : max(0, limit + credits - committed - reserved);
    const { scope, startMs, endMs } = window;
    return { scope, window: { startMs, endMs }, limit, credits, committed, reserved, available } as never;
  }

  #balances(windows: readonly Window[]): object[] {
    // The counters of a window are forgotten some time after its retention.
    const latestMs = FIRST_TICK_MS + this.latestTick * TICK_MS;
    return windows.map((window) =>
      (window.endMs ?? Infinity) + RETENTION_MS <= latestMs ? {} : this.#balance(window),
    );
  }

  #room(windows: readonly Window[], atMost: number): number {
    const rooms = windows.map((window) => this.#balance(window).available);
    return rooms.reduce<number>((room, each) => (each === 'unlimited' ? room : min(room, each)), atMost);
  }

  #exceeded(windows: readonly Window[], amount: number): object | undefined {
    if (amount === 0) return undefined;
    const full = windows.filter((window) => {
      const { available } = this.#balance(window);
      return available !== 'unlimited' && available < amount;
    });
    if (full.length === 0) return undefined;
    const violations = full.map((window) => {
      const { limit, credits, committed, reserved, available } = this.#balance(window);
      return {
        scope: window.scope,
        limit,
        credits,
        committed,
        reserved,
        available,
        requested: amount,
        resetAtMs: window.endMs,
      };
    });
    // Where only holds are in the way, it fits without them now.
    const areHolds = this.#fitsAt(full, amount, this.nowMs, false);
    const ends = windows.flatMap(({ endMs }) => endMs ?? []).sort((x, y) => x - y);
    const retryAtMs = ends.find((atMs) => this.#fitsAt(windows, amount, atMs, areHolds)) ?? null;
    return { ok: false, reason: 'exceeded', violations, retryAtMs };
  }

  /** A limit that is larger than at the last check arms the thresholds that were not reached before `added`. */
  #cross(windows: readonly Window[], added: number): object[] {
    return windows.flatMap((window) => {
      const { field, thresholds } = window;
      if (thresholds.length === 0) return [];
      const { limit, credits, committed, reserved } = this.#balance(window);
      const seen = this.#seen.get(field);
      const [before, now] = [seen?.set ?? this.#configuredFor(window), limit].map((each) =>
        each === 'unlimited' ? Infinity : each,
      ) as [number, number];
      this.#seen.set(field, { set: this.#setFor(window), credits });
      const reachedBy = (sum: number): number[] =>
        thresholds.filter(
          (percent) => now < Infinity && now + credits > 0 && 100 * sum >= percent * (now + credits),
        );
      let highest = this.#crossed.get(field) ?? 0;
      if (now + credits > before + (seen?.credits ?? 0))
        highest = Math.max(
          0,
          ...reachedBy(committed + reserved - added).filter((percent) => percent <= highest),
        );
      const crossed = reachedBy(committed + reserved).filter((percent) => percent > highest);
      this.#crossed.set(field, Math.max(highest, ...crossed));
      return crossed.map((percent) => ({ scope: window.scope, percent }));
    });
  }

  #reserved(operation: ModelOperation, replayed: boolean): object {
    const { generation, amount, crossed, windows } = operation;
    return {
      ok: true,
      status: 'reserved',
      generation,
      amount,
      replayed,
      crossed,
      balances: this.#balances(windows),
    };
  }

  #charged(operation: ModelOperation, replayed: boolean): object {
    const { amount, uncovered, crossed, windows } = operation;
    return {
      ok: true,
      status: 'charged',
      amount,
      uncovered,
      replayed,
      crossed,
      balances: this.#balances(windows),
    };
  }

  #finalized(operation: ModelOperation, replayed: boolean): object {
    const { amount, actual, committed, uncovered, late, crossed, windows } = operation;
    const released = late ? 0 : max(0, amount - committed);
    const sums = {
      reserved: amount,
      actual,
      committed,
      released,
      overage: max(0, actual - amount),
      uncovered,
      late,
    };
    return { ok: true, status: 'finalized', ...sums, replayed, crossed, balances: this.#balances(windows) };
  }
}

/**
 * How a body ends: well and with that cost (undefined: unreadable), or by an error. Also what it noted
 * before.
 */
export interface BodyEnd {
  readonly how: 'well' | 'hung up' | 'failed';
  readonly cost: number | undefined;
  readonly noted: number;
}

function costOf({ how, cost, noted }: BodyEnd, estimate: number): number | 'abort' {
  if (how === 'well') return max(cost ?? estimate, noted);
  if (noted > 0) return noted;
  return how === 'hung up' ? estimate : 'abort';
}

function same(operation: ModelOperation, kind: string, scopes: string[], amount: number): boolean {
  return (
    operation.kind === kind &&
    operation.amount === amount &&
    operation.scopes.length === scopes.length &&
    scopes.every((scope) => operation.scopes.includes(scope))
  );
}
