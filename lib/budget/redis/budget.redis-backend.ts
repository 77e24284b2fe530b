import { createHash } from 'node:crypto';
import type { ScriptArg, ScriptRunner } from '../../script/script-runner.js';
import type * as port from '../budget.backend.js';
import { periodKey } from '../budget.calendar.js';
import { encodeLimit, type Entries, EntryEncoder } from './budget.entries.js';
import { BudgetUnavailableError } from '../budget.errors.js';
import { noLimit, tooManyPeriods } from '../budget.limits.js';
import { redisBudgetRoots } from './budget.redis-roots.js';
import {
  decodeScope,
  encodeScope,
  idOf,
  parseAbortResult,
  parseBalances,
  parseBudgetResult,
  parseChargeResult,
  parseCreditResult,
  parseExtendResult,
  parseFinalizeResult,
  parseRecord,
  parseRefundResult,
  readable,
  type TextReply,
} from './budget.replies.js';
import { abortScript, extendScript } from './hold.scripts.js';
import { balanceScript, getScript, listScript, snapshotScript } from './read.scripts.js';
import type { BudgetKey, BudgetScript } from './budget.operation.fragments.js';
import { chargeScript } from './charge.script.js';
import { creditScript, refundScript, setLimitScript } from './adjust.scripts.js';
import { finalizeScript } from './finalize.script.js';
import { reaperScript } from './reaper.scripts.js';
import { repairScript } from './repair.script.js';
import { reserveScript } from './reserve.script.js';
import type { SetLimitResult } from '../budget.types.js';
import { verifySnapshot } from '../budget.verify.js';
import { inGroups, parseSnapshot } from './budget.snapshot.js';

/** The arguments of a script, except `retentionMs`, which every script gets. */
type Args<Arg extends string> = Readonly<Record<Exclude<Arg, 'retentionMs'>, ScriptArg>>;

interface Call extends port.Request {
  onLate?(reply: TextReply): void;
  onResent?(): void;
}

export interface RedisBudgetBackendConfig {
  readonly keyPrefix: string;
  readonly retentionMs: number;
}

const LONGEST_ROOT = 200;
/** How often a call is sent whose windows the server calls stale. They are stale again only while its clock jumps. */
const STALE_ATTEMPTS = 3;
/** For how many `commandTimeoutMs` a call runs again. */
const MOST_TIMEOUTS = 5;
/** The largest number of scopes whose periods of setLimit are remembered between calls. */
const MAX_REMEMBERED = 1_000;

/** Budgets on Redis. Each operation is one atomic script over the four keys of its root. */
export class RedisBudgetBackend implements port.BudgetBackend {
  readonly roots: port.BudgetRoots;
  readonly #encoder = new EntryEncoder();
  /** How far the server's clock was ahead of ours at the last reply 'stale' or 'periods', in ms. */
  #skewMs = 0;
  /** Periods that have a limit only by setLimit, by root and scope. The reply 'periods' lists them. */
  #learned = new Map<string, Set<string>>();

  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisBudgetBackendConfig,
  ) {
    this.roots = redisBudgetRoots(runner, config.keyPrefix);
  }

  async reserve(request: port.ReserveRequest) {
    const { id, amount, ttlMs, meta, mode, nonce, scopes } = request;
    const args = { id, amount: String(amount), ttlMs, meta, mode, nonce };
    const parse = (reply: TextReply) => parseBudgetResult(reply, request, nonce);
    return parse(await this.#admit(reserveScript, withListeners(request, parse), scopes, args));
  }

  async charge(request: port.ChargeRequest) {
    const { id, amount, mode, scopes } = request;
    const args = { id, amount: String(amount), mode };
    const parse = (reply: TextReply) => parseChargeResult(reply, request);
    return parse(await this.#admit(chargeScript, withListeners(request, parse), scopes, args));
  }

  async finalize(request: port.FinalizeRequest) {
    const { id, generation, nonce, actual, overage, late } = request;
    const args = { id, generation, nonce, actual: String(actual), overage, late };
    const parse = (reply: TextReply) => parseFinalizeResult(reply, request);
    return parse(await this.#run(finalizeScript, withListeners(request, parse), args));
  }

  async abort(request: port.HoldRequest) {
    return parseAbortResult(await this.#run(abortScript, request, refOf(request)), request);
  }

  async extend(request: port.ExtendRequest) {
    const args = { ...refOf(request), ttlMs: request.ttlMs };
    return parseExtendResult(await this.#run(extendScript, request, args), request);
  }

  async refund(request: port.RefundRequest) {
    const { amount, refundId } = request;
    const args = { ...refOf(request), amount: String(amount), refundId };
    return parseRefundResult(await this.#run(refundScript, request, args), request, amount);
  }

  async credit(request: port.CreditRequest) {
    const { id, amount, period, scope } = request;
    const args = { id, amount: String(amount), period: periodKey(period) };
    return parseCreditResult(await this.#admit(creditScript, request, [scope], args));
  }

  async setLimit(request: port.SetLimitRequest): Promise<SetLimitResult> {
    const { scope, period, limit } = request;
    const [status] = await this.#run(setLimitScript, request, {
      scope: encodeScope(scope),
      period: periodKey(period),
      limit: limit === null ? '-' : encodeLimit(limit),
    });
    if (status === 'too_many') throw tooManyPeriods(scope);
    return { ok: true, status: status === 'cleared' ? 'cleared' : 'set' };
  }

  async balance(request: port.BalanceRequest) {
    const [, ...lists] = await this.#admit(balanceScript, request, [request.scope], {});
    return parseBalances(lists);
  }

  async get(request: port.HoldRequest) {
    const [status, packed, detail, nowMs] = await this.#run(getScript, request, refOf(request));
    return status === 'found' ? parseRecord(packed, detail, request, Number(nowMs)) : null;
  }

  async list(request: port.ListRequest) {
    const { root, cursor, limit } = request;
    const [, next, nowMs, ...found] = await this.#run(listScript, request, { cursor: cursor ?? '0', limit });
    const records = inGroups(3, found).flatMap(([field = '', packed, detail]) => {
      // A record that cannot be read stops nobody. `verify` lists it.
      const parse = () => parseRecord(packed, detail, { root, id: idOf(field) }, Number(nowMs));
      return readable(parse) ?? [];
    });
    return { records, cursor: next === '0' || next === undefined ? null : next };
  }

  async reap(request: port.ReapRequest) {
    const call = withListeners(request, toReapStep);
    return toReapStep(await this.#run(reaperScript, call, { max: request.max }));
  }

  async verify(request: port.VerifyRequest) {
    if (request.repair) await this.#run(repairScript, request, {});
    const [, ...reply] = await this.#run(snapshotScript, request, {});
    return verifySnapshot(parseSnapshot(reply));
  }

  /** Runs a script. While it replies 'more', it has only settled a full batch of expired holds, and runs again. */
  async #run<Arg extends string>(
    script: BudgetScript<Arg>,
    { root, signal, onLate, onResent }: Call,
    args: Args<Arg>,
  ): Promise<TextReply> {
    const keys = this.#keysOf(root);
    const endMs = this.#endMs();
    const all: Readonly<Record<string, ScriptArg>> = Object.assign(args, {
      retentionMs: this.config.retentionMs,
    });
    try {
      for (;;) {
        const reply = await this.runner.run(script, keys, all, { signal, onLate, onReplay: onResent });
        if (reply[0] !== 'more') return reply;
        if (performance.now() > endMs) throw endless('more');
      }
    } catch (error) {
      throw BudgetUnavailableError.from(error);
    }
  }

  /**
   * Runs a script that checks limits. Runs it again where the windows of the call are not those of the server's clock
   * ('stale'), or where setLimit limits further periods ('periods').
   */
  async #admit<Arg extends string>(
    script: BudgetScript<Arg | keyof Entries>,
    call: Call,
    scopes: readonly port.LimitedScope[],
    args: Args<Exclude<Arg, keyof Entries>>,
  ): Promise<TextReply> {
    const endMs = this.#endMs();
    for (let stale = 0; stale < STALE_ATTEMPTS;) {
      const all = Object.assign(this.#entriesOf(call.root, scopes), args) as Args<Arg | keyof Entries>;
      const reply = await this.#run(script, call, all);
      const status = reply[0];
      if (status === 'no_limit') throw noLimit(decodeScope(reply[1] ?? ''));
      if (status !== 'stale' && status !== 'periods') return reply;
      if (performance.now() > endMs) throw endless(status);
      if (status === 'stale') stale++;
      this.#skewMs = Number(reply[1]) - Date.now();
      for (const each of reply.slice(2)) this.#learn(call.root, each);
    }
    throw new BudgetUnavailableError({
      code: 'Internal',
      message: `The clock of the Redis server changed during each of ${STALE_ATTEMPTS} attempts, so the windows of this budget could not be determined. Nothing was counted.`,
      hint: 'Call again. If it happens often, let the time service of the server adjust the clock slowly and never set it, and compare the clocks of all servers of a Cluster or Sentinel set.',
    });
  }

  /** When a call that is told to run again gives up. A server that answers as ours do is done long before. */
  #endMs(): number {
    return performance.now() + MOST_TIMEOUTS * this.runner.commandTimeoutMs;
  }

  #entriesOf(root: string, scopes: readonly port.LimitedScope[]): Entries {
    const named = scopes.map(({ scope, limits }) => {
      const name = encodeScope(scope);
      return { name, limits, learned: this.#learned.get(`${root} ${name}`) };
    });
    return this.#encoder.encode(named, Date.now() + this.#skewMs);
  }

  #learn(root: string, scopeAndPeriod: string): void {
    const [scope, period] = scopeAndPeriod.split('|') as [string, string];
    // Forgets all. The next call of a scope then needs one more round trip to learn its periods again.
    if (this.#learned.size >= MAX_REMEMBERED) this.#learned = new Map();
    const key = `${root} ${scope}`;
    this.#learned.set(key, (this.#learned.get(key) ?? new Set()).add(period));
  }

  #keysOf(root: string): Record<BudgetKey, string> {
    const base = `${this.config.keyPrefix}/budget:{${encodeRoot(root)}}`;
    return { counters: `${base}:b`, records: `${base}:h`, pending: `${base}:x`, garbage: `${base}:g` };
  }
}

/** Returns a call whose `onLate` receives the parsed result. A call without `onLate` has no listeners. */
function withListeners<Result>(
  { root, signal, onLate, onResent }: Omit<Call, 'onLate'> & { onLate?(result: Result): void },
  parse: (reply: TextReply) => Result,
): Call {
  if (!onLate) return { root, signal };
  // These replies ask for another call, so they carry no answer.
  const isAnswer = ([status]: TextReply): boolean => !NO_ANSWER.has(status);
  return { root, signal, onResent, onLate: (reply) => isAnswer(reply) && onLate(parse(reply)) };
}

const endless = (status: string): BudgetUnavailableError =>
  new BudgetUnavailableError({
    code: 'Internal',
    message: `The server answered '${status}' again and again, so the call gave up.`,
    hint: 'Look for a proxy or a module that changes the replies of scripts, and for another program that writes to the keys of budgets.',
  });

const NO_ANSWER: ReadonlySet<string> = new Set(['more', 'stale', 'periods', 'no_limit']);

const refOf = ({ id, generation, nonce }: port.HoldRequest) => ({ id, generation, nonce });

/** Percent-encodes a root, so that it has no braces. A long one becomes `#`, which no encoding has, and its SHA-256. */
function encodeRoot(root: string): string {
  const encoded = encodeURIComponent(root);
  if (encoded.length <= LONGEST_ROOT) return encoded;
  return `#${createHash('sha256').update(root).digest('base64url')}`;
}

function toReapStep([, purged, nextInMs, count, ...found]: TextReply): port.ReapStep {
  const expired = found.splice(0, Number(count));
  const toQuarantined = ([field = '', reserved = '']: string[]) => ({
    field,
    reserved: reserved === '' ? null : BigInt(reserved),
  });
  return {
    expired,
    quarantined: inGroups(2, found).map(toQuarantined),
    purged: Number(purged),
    nextInMs: nextInMs === '-1' ? null : Number(nextInMs),
  };
}
