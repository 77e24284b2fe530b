import { hash } from 'node:crypto';
import { hashTag } from '../../redis/redis.keys.js';
import { type ResolvedPageOptions, wrongCursor } from '../../core/page.js';
import { escapeGlob, walk } from '../../script/walk.js';
import type { ScriptArg, ScriptRunner } from '../../script/script-runner.js';
import type * as port from '../budget.backend.js';
import { encodeLimit, type Entries, EntryEncoder } from './budget.entries.js';
import { BudgetUnavailableError } from '../budget.errors.js';
import { tooLarge } from '../budget.limits.js';
import * as replies from './budget.replies.js';
import { abortScript, extendScript } from './hold.scripts.js';
import { balanceScript, getScript, listScript, scopesScript, snapshotScript } from './read.scripts.js';
import type { BudgetKey, BudgetScript } from './budget.operation.fragments.js';
import { chargeScript } from './charge.script.js';
import { creditScript, refundScript, setLimitScript } from './adjust.scripts.js';
import { finalizeScript } from './finalize.script.js';
import { reaperScript, rootsScript } from './reaper.scripts.js';
import { repairScript } from './repair.script.js';
import { reserveScript } from './reserve.script.js';
import type { ReplyContext } from '../budget.results.js';
import type * as budget from '../budget.types.js';
import { ANY_NONCE } from '../budget.bounds.js';
import { verifySnapshot } from '../budget.verify.js';
import { inGroups, parseSnapshot } from './budget.snapshot.js';

/** The arguments of a script, except `retentionMs`, which every script gets. */
type Args<Arg extends string> = Readonly<Record<Exclude<Arg, 'retentionMs'>, ScriptArg>>;

type RefArg = 'id' | 'generation' | 'nonce';

interface Call extends port.Request {
  onLate?(reply: replies.TextReply): void;
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
/** How many characters of a hash name an id: 128 bits. */
const TAG_LENGTH = 22;

/** Budgets on Redis. Each operation is one atomic script over the keys of its root. */
export class RedisBudgetBackend implements port.BudgetBackend {
  readonly #encoder = new EntryEncoder();
  /** How far the server's clock was ahead of ours at the last reply 'stale', in ms. */
  #skewMs = 0;

  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisBudgetBackendConfig,
  ) {}

  reserve(request: port.ReserveRequest) {
    const { id, amount, ttlMs, meta, mode, nonce, scopes } = request;
    const call = operation<port.ReserveOutcome>('reserved', request);
    const args = { id, amount: String(amount), ttlMs, meta, mode, nonce };
    // Nothing was kept under an id that was made for this call.
    const tag = nonce === ANY_NONCE ? '' : tagOf('o', id);
    return this.#admit(reserveScript, call, scopes, args, tag).then(call.parse);
  }

  charge(request: port.ChargeRequest) {
    const { id, amount, mode, idTtlMs, scopes } = request;
    const call = operation<budget.ChargeResult>('charged', request);
    const args = { id, amount: String(amount), mode, idTtlMs };
    return this.#admit(chargeScript, call, scopes, args, tagOf('o', id)).then(call.parse);
  }

  finalize(request: port.FinalizeRequest) {
    const { actual, overage, late, idTtlMs } = request;
    const call = operation<budget.FinalizeResult>('finalized', request);
    const args = { actual: String(actual), overage, late, idTtlMs };
    return this.#runOn(finalizeScript, request, args, call).then(call.parse);
  }

  abort(request: port.HoldRequest) {
    const call = operation<budget.AbortResult>('aborted', request);
    return this.#runOn(abortScript, request, {}, call).then(call.parse);
  }

  extend(request: port.ExtendRequest) {
    const call = operation<budget.ExtendHoldResult>('extended', request);
    return this.#runOn(extendScript, request, { ttlMs: request.ttlMs }, call).then(call.parse);
  }

  refund(request: port.RefundRequest) {
    const call = operation<budget.RefundResult>('refunded', request);
    const args = { amount: String(request.amount) };
    return this.#runOn(refundScript, request, args, call, tagOf('r', request.refundId)).then(call.parse);
  }

  async credit(request: port.CreditRequest) {
    const { id, scope, amount } = request;
    const args = { amount: String(amount) };
    return replies.parseCreditResult(await this.#admit(creditScript, request, [scope], args, tagOf('k', id)));
  }

  async setLimit(request: port.SetLimitRequest): Promise<budget.SetLimitResult> {
    const { scope, limit } = request;
    const field = this.#entriesOf([scope]).fields;
    const [, name = '', period = ''] = field.split('|');
    const args = { scope: name, period, field, limit: limit === null ? '-' : encodeLimit(limit) };
    const [status] = await this.#run(setLimitScript, request, args);
    return { ok: true, status: status === 'cleared' ? 'cleared' : 'set' };
  }

  async balance(request: port.BalanceRequest) {
    const [, ...lists] = await this.#admit(balanceScript, request, [request.scope], {});
    return replies.parseBalances(lists);
  }

  async get(request: port.HoldRequest) {
    const [status, packed, nowMs] = await this.#runOn(getScript, request, {}, request);
    return status === 'found' ? replies.parseRecord(packed, request, Number(nowMs)) : null;
  }

  async list(request: port.ListRequest) {
    const { root, cursor, limit } = request;
    const [, next, nowMs, ...found] = await this.#run(listScript, request, { cursor: cursor ?? '0', limit });
    const records = inGroups(2, found).flatMap(([field = '', packed]) => {
      // A record that cannot be read stops nobody. `verify` lists it.
      const parse = () => replies.parseRecord(packed, { root, id: replies.idOf(field) }, Number(nowMs));
      return replies.readable(parse) ?? [];
    });
    return { records, cursor: next === '0' || next === undefined ? null : next };
  }

  async reap(request: port.ReapRequest) {
    const call = parsedBy(toReapStep, request);
    return call.parse(await this.#run(reaperScript, call, { max: request.max }));
  }

  async allRoots(page: ResolvedPageOptions) {
    const { names, cursor } = await walk(
      this.runner,
      `${escapeGlob(this.config.keyPrefix)}/budget:{*}:b`,
      page,
    ).catch((fault: unknown) => {
      throw BudgetUnavailableError.from(fault);
    });
    const roots = names.flatMap((name) => /:\{([^#{}]*)\}:b$/.exec(name)?.[1] ?? []);
    return { names: roots.map(decodeURIComponent), cursor };
  }

  async scopes(root: string, { cursor = '0', limit, signal }: ResolvedPageOptions) {
    if (!/^\d{1,20}$/.test(cursor)) throw wrongCursor(cursor);
    const [, next, ...fields] = await this.#run(scopesScript, { root, signal }, { cursor, limit });
    const names = fields.map((field) => replies.decodeScope(field.split('|')[1] ?? ''));
    return { names, cursor: next === '0' ? undefined : next };
  }

  async roots({ used, reaped, ...rest }: port.RootsRequest) {
    const keys = { registry: `${this.config.keyPrefix}/budget-roots` };
    const [untilMs, ...roots] = await this.runner.run(rootsScript, keys, {
      used: used.map(encodeURIComponent).join(' '),
      reaped: reaped
        .map((each) => [encodeURIComponent(each.root), each.untilMs, each.nextInMs ?? ''].join('='))
        .join(' '),
      ...rest,
    });
    return { untilMs: Number(untilMs), roots: roots.map(decodeURIComponent) };
  }

  async verify(request: port.VerifyRequest) {
    if (request.repair) await this.#run(repairScript, request, {});
    const [, ...reply] = await this.#run(snapshotScript, request, {});
    return verifySnapshot(parseSnapshot(reply));
  }

  /** Runs a script on the hold that a request refers to. */
  #runOn<Arg extends string>(
    script: BudgetScript<Arg | RefArg>,
    { id, generation, nonce }: port.HoldRequest,
    args: Args<Exclude<Arg, RefArg>>,
    call: Call,
    refundTag?: string,
  ): Promise<replies.TextReply> {
    const all = Object.assign(args, { id, generation, nonce }) as Args<Arg | RefArg>;
    return this.#run(script, call, all, tagOf('o', id), refundTag);
  }

  /** Runs a script. While it replies 'more', it has only settled a full batch of expired holds, and runs again. */
  async #run<Arg extends string>(
    script: BudgetScript<Arg>,
    { root, signal, onLate, onResent }: Call,
    args: Args<Arg>,
    ...tags: (string | undefined)[]
  ): Promise<replies.TextReply> {
    const keys = this.#keysOf(root, ...tags);
    // A server that answers as ours do is done long before.
    const endMs = performance.now() + MOST_TIMEOUTS * this.runner.commandTimeoutMs;
    const all: Readonly<Record<string, ScriptArg>> = Object.assign(args, {
      retentionMs: this.config.retentionMs,
    });
    try {
      for (;;) {
        const reply = await this.runner.run(script, keys, all, { signal, onLate, onReplay: onResent });
        if (reply[0] === 'too_large') throw tooLarge();
        if (reply[0] !== 'more') return reply;
        if (performance.now() > endMs) throw endless();
      }
    } catch (error) {
      throw BudgetUnavailableError.from(error);
    }
  }

  /** Runs a script that checks limits. Runs it again where the windows of the call are not those of the server's clock. */
  async #admit<Arg extends string>(
    script: BudgetScript<Arg | keyof Entries>,
    call: Call,
    scopes: readonly port.LimitedScope[],
    args: Args<Exclude<Arg, keyof Entries>>,
    idTag?: string,
  ): Promise<replies.TextReply> {
    for (let attempt = 0; attempt < STALE_ATTEMPTS; attempt++) {
      const all = Object.assign(this.#entriesOf(scopes), args) as Args<Arg | keyof Entries>;
      const reply = await this.#run(script, call, all, idTag);
      if (reply[0] !== 'stale') return reply;
      this.#skewMs = Number(reply[1]) - Date.now();
    }
    throw new BudgetUnavailableError({
      code: 'Internal',
      message: `The clock of the Redis server changed during each of ${STALE_ATTEMPTS} attempts, so the windows of this budget could not be determined. Nothing was counted.`,
      hint: 'Call again. If it happens often, let the time service of the server adjust the clock slowly and never set it, and compare the clocks of all servers of a Cluster or Sentinel set.',
    });
  }

  #entriesOf(scopes: readonly port.LimitedScope[]): Entries {
    const named = scopes.map(({ scope, limits }) => ({ name: replies.encodeScope(scope), limits }));
    return this.#encoder.encode(named, Date.now() + this.#skewMs);
  }

  #keysOf(root: string, idTag = '', refundTag = ''): Record<BudgetKey, string> {
    const base = `${this.config.keyPrefix}/budget:{${encodeRoot(root)}}`;
    return {
      counters: `${base}:b`,
      records: `${base}:h`,
      pending: `${base}:x`,
      garbage: `${base}:g`,
      idKey: `${base}:id:${idTag}`,
      refundKey: `${base}:id:${refundTag}`,
    };
  }
}

/** Names an id among the operations (`o`), the refunds (`r`) or the credits (`k`) of a root. */
const tagOf = (kind: 'o' | 'r' | 'k', id: string): string => hashTag(`${kind}|${id}`, TAG_LENGTH);

/** Returns a call with how its reply is parsed, also for its `onLate`. A call without `onLate` has no listeners. */
function parsedBy<Result>(
  parse: (reply: replies.TextReply) => Result,
  { root, signal, onLate, onResent }: Omit<Call, 'onLate'> & { onLate?(result: Result): void },
): Call & { parse(reply: replies.TextReply): Result } {
  if (!onLate) return { root, signal, parse };
  // These replies ask for another call, so they carry no answer.
  const isAnswer = ([status]: replies.TextReply): boolean => !NO_ANSWER.has(status);
  return { root, signal, parse, onResent, onLate: (reply) => isAnswer(reply) && onLate(parse(reply)) };
}

type OperationCall<Result> = Omit<Call, 'onLate'> & ReplyContext & { onLate?(outcome: Result): void };

const operation = <Result extends { readonly ok: boolean }>(
  done: string,
  request: OperationCall<port.Outcome<Result>>,
) => parsedBy((reply) => replies.parseOutcome<Result>(done, reply, request), request);

const endless = (): BudgetUnavailableError =>
  new BudgetUnavailableError({
    code: 'Internal',
    message: "The server answered 'more' again and again, so the call gave up.",
    hint: 'Look for a proxy or a module that changes the replies of scripts, and for another program that writes to the keys of budgets.',
  });

const NO_ANSWER: ReadonlySet<string> = new Set(['more', 'stale', 'too_large']);

/** Percent-encodes a root, so that it has no braces. A long one becomes `#`, which no encoding has, and its SHA-256. */
function encodeRoot(root: string): string {
  const encoded = encodeURIComponent(root);
  if (encoded.length <= LONGEST_ROOT) return encoded;
  return `#${hash('sha256', root, 'base64url')}`;
}

function toReapStep([, purged, nextInMs, count, ...found]: replies.TextReply): port.ReapStep {
  const expired = found.splice(0, Number(count));
  const toQuarantined = ([field = '', reserved = '']: string[]) => ({
    field,
    reserved: reserved === '' ? null : Number(reserved),
  });
  return {
    expired,
    quarantined: inGroups(2, found).map(toQuarantined),
    purged: Number(purged),
    nextInMs: nextInMs === '-1' ? null : Number(nextInMs),
  };
}
