import { createHash } from 'node:crypto';
import type { Script } from '../script/define-script.js';
import type { ScriptArg, ScriptRunner } from '../script/script-runner.js';
import type {
  BalanceRequest,
  BudgetBackend,
  ChargeRequest,
  CreditRequest,
  ExtendRequest,
  FinalizeRequest,
  ListRequest,
  ReapStep,
  RefundRequest,
  ReserveRequest,
  SetLimitRequest,
} from './budget.backend.js';
import { BudgetCalendar, parsePeriodKey, periodKey } from './budget.calendar.js';
import { BudgetInputError, BudgetUnavailableError } from './budget.errors.js';
import { type LimitedScope, noLimit } from './budget.limits.js';
import {
  decodeScope,
  encodeScope,
  parseAbortResult,
  parseBalances,
  parseBudgetResult,
  parseChargeResult,
  parseCreditResult,
  parseExtendResult,
  parseFinalizeResult,
  parseRecord,
  parseRecordFields,
  parseRefundResult,
  type TextReply,
} from './budget.replies.js';
import {
  abortScript,
  balanceScript,
  type BUDGET_KEYS,
  chargeScript,
  creditScript,
  extendScript,
  finalizeScript,
  getScript,
  listScript,
  reaperScript,
  refundScript,
  reserveScript,
  setLimitScript,
  snapshotScript,
} from './budget.scripts.js';
import type {
  AbortResult,
  Balance,
  BudgetRecord,
  ChargeResult,
  CreditResult,
  ExtendHoldResult,
  FinalizeResult,
  Period,
  RefundResult,
  ReserveResult,
  SetLimitResult,
  VerifyResult,
} from './budget.types.js';
import { type SnapshotOperation, verifySnapshot } from './budget.verify.js';

type BudgetKey = (typeof BUDGET_KEYS)[number];
type BudgetScript<Arg extends string> = Script<BudgetKey, Arg, TextReply>;

/** All but the one that each of them takes. */
type Args<Arg extends string> = Readonly<Record<Exclude<Arg, 'retentionMs'>, ScriptArg>>;

interface Call {
  readonly root: string;
  readonly signal?: AbortSignal | undefined;
}

export interface RedisBudgetBackendConfig {
  readonly keyPrefix: string;
  readonly retentionMs: number;
}

const LONGEST_ROOT = 200;
/** A window is stale twice only when the clock jumps; more than that is not waited for. */
const STALE_ATTEMPTS = 3;
/** How many (scope, period)s that only setLimit limits are remembered between calls. */
const MAX_REMEMBERED = 1_000;

/** Budgets on Redis: each operation one atomic script over the four keys of its root. */
export class RedisBudgetBackend implements BudgetBackend {
  readonly #calendar = new BudgetCalendar();
  /** How far the server's clock is ahead of ours, as far as it ever mattered. */
  #skewMs = 0;
  /** Periods that setLimit has limited and no configuration names, by root and scope. */
  #learned = new Map<string, Set<string>>();

  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisBudgetBackendConfig,
  ) {}

  async reserve(request: ReserveRequest): Promise<ReserveResult<bigint>> {
    const { root, id, amount, ttlMs, meta, scopes } = request;
    const fixed = { id, amount: String(amount), ttlMs, meta, scopes: encodeScopes(scopes) };
    const reply = await this.#admit(reserveScript, request, scopes, (entriesText) => ({
      ...fixed,
      entriesText,
    }));
    return parseBudgetResult(reply, { root, id });
  }

  async charge(request: ChargeRequest): Promise<ChargeResult<bigint>> {
    const { root, id, amount, mode, scopes } = request;
    const fixed = { id, amount: String(amount), mode, scopes: encodeScopes(scopes) };
    const reply = await this.#admit(chargeScript, request, scopes, (entriesText) => ({
      ...fixed,
      entriesText,
    }));
    return parseChargeResult(reply, { root, id });
  }

  async finalize(request: FinalizeRequest): Promise<FinalizeResult<bigint>> {
    const { root, id, actual, overage, late } = request;
    const reply = await this.#run(finalizeScript, request, { id, actual: String(actual), overage, late });
    return parseFinalizeResult(reply, { root, id });
  }

  async abort(request: Call & { id: string }): Promise<AbortResult<bigint>> {
    const { root, id } = request;
    return parseAbortResult(await this.#run(abortScript, request, { id }), { root, id });
  }

  async extend(request: ExtendRequest): Promise<ExtendHoldResult<bigint>> {
    const { root, id, ttlMs } = request;
    return parseExtendResult(await this.#run(extendScript, request, { id, ttlMs }), { root, id });
  }

  async refund(request: RefundRequest): Promise<RefundResult<bigint>> {
    const { root, id, amount, refundId } = request;
    const reply = await this.#run(refundScript, request, { id, amount: String(amount), refundId });
    return parseRefundResult(reply, { root, id }, amount);
  }

  async credit(request: CreditRequest): Promise<CreditResult<bigint>> {
    const { id, amount, period, scope } = request;
    const fixed = { id, amount: String(amount), period: periodKey(period), scopes: encodeScope(scope.scope) };
    const reply = await this.#admit(creditScript, request, [scope], (entriesText) => ({
      ...fixed,
      entriesText,
    }));
    return parseCreditResult(reply);
  }

  async setLimit(request: SetLimitRequest): Promise<SetLimitResult> {
    const { scope, period, limit } = request;
    const [status] = await this.#run(setLimitScript, request, {
      scope: encodeScope(scope),
      period: periodKey(period),
      limit: limit === null ? '-' : encodeLimit(limit),
    });
    if (status === 'too_many')
      throw new BudgetInputError('A scope can have at most 16 periods limited by setLimit.');
    return { ok: true, status: status === 'cleared' ? 'cleared' : 'set' };
  }

  async balance(request: BalanceRequest): Promise<Balance<bigint>[]> {
    const scopes = encodeScope(request.scope.scope);
    const [, ...lines] = await this.#admit(balanceScript, request, [request.scope], (entriesText) => ({
      scopes,
      entriesText,
    }));
    return parseBalances(lines);
  }

  async get(request: Call & { id: string }): Promise<BudgetRecord<bigint> | null> {
    const { root, id } = request;
    const [status, packed, nowMs] = await this.#run(getScript, request, { id });
    if (status !== 'found') return null;
    const record = parseRecord(packed as string, { root, id });
    // It only reads: what has expired says so, though nothing was written yet.
    const isExpired = record.state === 'pending' && record.expiresAtMs <= Number(nowMs);
    return isExpired ? { ...record, state: 'expired', endedAtMs: record.expiresAtMs } : record;
  }

  async list(request: ListRequest): Promise<{ records: BudgetRecord<bigint>[]; cursor: string | null }> {
    const { root, cursor, limit } = request;
    const [, next, ...pairs] = await this.#run(listScript, request, { cursor: cursor ?? '0', limit });
    const records: BudgetRecord<bigint>[] = [];
    for (const [id, packed] of inPairs(pairs)) records.push(parseRecord(packed, { root, id }));
    return { records, cursor: next === '0' || next === undefined ? null : next };
  }

  async reap(request: Call & { max: number }): Promise<ReapStep> {
    const [, purged, nextInMs, ...expired] = await this.#run(reaperScript, request, { max: request.max });
    return { expired, purged: Number(purged), nextInMs: nextInMs === '-1' ? null : Number(nextInMs) };
  }

  async verify(request: Call): Promise<VerifyResult> {
    const [, ...reply] = await this.#run(snapshotScript, request, {});
    const take = (): string[] => reply.splice(0, Number(reply.shift()));
    const counters = inPairs(take()).filter(([field]) => field.startsWith('c|'));
    const records = inPairs(take()).filter(([field]) => field.startsWith('o|'));
    return verifySnapshot({
      counters: new Map(counters.map(([field, packed]) => [field, parseCounter(packed)])),
      operations: records.map(([field, packed]) => toOperation(request.root, field.slice(2), packed)),
      pending: new Set(take().filter((member) => member !== '~')),
    });
  }

  /** Runs a script until nothing expired is in its way. */
  async #run<Arg extends string>(
    script: BudgetScript<Arg>,
    { root, signal }: Call,
    args: Args<Arg>,
  ): Promise<TextReply> {
    const keys = this.#keysOf(root);
    const all = { ...args, retentionMs: this.config.retentionMs };
    try {
      for (;;) {
        const reply = await this.runner.run(script as BudgetScript<string>, keys, all, { signal });
        if (reply[0] !== 'more') return reply;
      }
    } catch (error) {
      throw BudgetUnavailableError.from(error);
    }
  }

  /** Runs a script that admits entries, with windows and periods as the server sees them. */
  async #admit<Arg extends string>(
    script: BudgetScript<Arg>,
    call: Call,
    scopes: readonly LimitedScope[],
    argsOf: (entriesText: string) => Args<Arg>,
  ): Promise<TextReply> {
    for (let stale = 0; stale < STALE_ATTEMPTS;) {
      const reply = await this.#run(script, call, argsOf(this.#entriesText(call.root, scopes)));
      const [status, detail = '', ...periods] = reply;
      if (status === 'no_limit') throw noLimit(decodeScope(detail));
      if (status !== 'stale' && status !== 'periods') return reply;
      if (status === 'stale') stale++;
      this.#skewMs = Number(detail) - Date.now();
      for (const each of periods) this.#learn(call.root, each);
    }
    throw new BudgetUnavailableError({
      code: 'Internal',
      message: "The budget's windows could not be agreed on with Redis: its clock jumps.",
    });
  }

  /** One (scope, period, window) each: at|period|start|end|limit|inherited|thresholds; budget.fragments.ts reads it. */
  #entriesText(root: string, scopes: readonly LimitedScope[]): string {
    const nowMs = Date.now() + this.#skewMs;
    const entries: string[] = [];
    scopes.forEach(({ scope, limits }, index) => {
      const entry = (period: Period, key: string, rest: string): void => {
        const { startMs, endMs } = this.#calendar.windowAt(period, nowMs);
        entries.push(`${index + 1}|${key}|${startMs}|${endMs ?? 0}|${rest}`);
      };
      const learned = this.#learned.get(`${root} ${encodeScope(scope)}`);
      for (const { period, limit, inherited, thresholds } of limits) {
        const key = periodKey(period);
        entry(period, key, `${encodeLimit(limit)}|${inherited ? 1 : 0}|${thresholds.join(',') || '-'}`);
      }
      for (const key of learned ?? [])
        if (!limits.some(({ period }) => periodKey(period) === key)) entry(parsePeriodKey(key), key, '-|0|-');
    });
    return entries.join(';');
  }

  #learn(root: string, scopeAndPeriod: string): void {
    const [scope, period] = scopeAndPeriod.split('|') as [string, string];
    // What is forgotten is learned again, at the price of a round trip.
    if (this.#learned.size >= MAX_REMEMBERED) this.#learned = new Map();
    const key = `${root} ${scope}`;
    this.#learned.set(key, (this.#learned.get(key) ?? new Set()).add(period));
  }

  #keysOf(root: string): Record<BudgetKey, string> {
    const base = `${this.config.keyPrefix}/budget:{${encodeRoot(root)}}`;
    return { counters: `${base}:b`, records: `${base}:h`, pending: `${base}:x`, garbage: `${base}:g` };
  }
}

/** Percent-encoded, so that it has no braces; a long one by its SHA-256, behind a sign that no encoding holds. */
function encodeRoot(root: string): string {
  const encoded = encodeURIComponent(root);
  if (encoded.length <= LONGEST_ROOT) return encoded;
  return `#${createHash('sha256').update(root).digest('base64url')}`;
}

const encodeScopes = (scopes: readonly LimitedScope[]): string =>
  scopes.map(({ scope }) => encodeScope(scope)).join(',');

const encodeLimit = (limit: bigint | 'unlimited'): string => (limit === 'unlimited' ? 'u' : String(limit));

function inPairs(list: readonly string[]): [string, string][] {
  const pairs: [string, string][] = [];
  for (let i = 0; i + 1 < list.length; i += 2) pairs.push([list[i] as string, list[i + 1] as string]);
  return pairs;
}

function parseCounter(packed: string): { committed: bigint; reserved: bigint; archived: bigint } {
  const [committed, reserved, , archived] = packed.split(' ').map(BigInt) as [bigint, bigint, bigint, bigint];
  return { committed, reserved, archived };
}

function toOperation(root: string, id: string, packed: string): SnapshotOperation {
  const { state, amount, committed, refunded } = parseRecord(packed, { root, id });
  return { id, state, amount, committed, refunded, fields: parseRecordFields(packed) };
}
