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
import type { BudgetKey, BudgetScript } from './budget.operation.fragments.js';
import * as scripts from './budget.scripts.js';
import type * as budget from '../budget.types.js';
import { ANY_NONCE, type ReplyContext } from '../budget.results.js';
import { verifySnapshot } from '../budget.verify.js';
import { inGroups, parseSnapshot } from './budget.snapshot.js';

/** A call: whom it concerns, who hears of its answer, and the arguments of its script. */
interface Call<Result> extends port.Request {
  /** What a script counts in, that takes entries. */
  readonly scopes?: readonly port.LimitedScope[];
  onLate?(result: Result): void;
  onResent?(): void;
}

/** The arguments that a call names itself. */
type Named<Arg extends string> = Readonly<Record<Exclude<Arg, keyof Entries | 'retentionMs'>, ScriptArg>>;

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
    // Nothing was kept under an id that was made for this call.
    const tag = request.nonce === ANY_NONCE ? '' : tagOf('o', request.id);
    return this.#run(scripts.reserveScript, request, replies.outcomeOf<port.ReserveOutcome>('reserved'), tag);
  }

  charge(request: port.ChargeRequest) {
    return this.#step(scripts.chargeScript, request, replies.outcomeOf<budget.ChargeResult>('charged'));
  }

  finalize(request: port.FinalizeRequest) {
    return this.#step(scripts.finalizeScript, request, replies.outcomeOf<budget.FinalizeResult>('finalized'));
  }

  abort(request: port.HoldRequest) {
    return this.#step(scripts.abortScript, request, replies.outcomeOf<budget.AbortResult>('aborted'));
  }

  extend(request: port.ExtendRequest) {
    return this.#step(scripts.extendScript, request, replies.outcomeOf<budget.ExtendHoldResult>('extended'));
  }

  refund(request: port.RefundRequest) {
    const parse = replies.outcomeOf<budget.RefundResult>('refunded');
    return this.#step(scripts.refundScript, request, parse, tagOf('r', request.refundId));
  }

  async credit({ scope, ...request }: port.CreditRequest) {
    const call = { ...request, scopes: [scope] };
    return this.#run(scripts.creditScript, call, replies.parseCreditResult, tagOf('k', request.id));
  }

  async setLimit({ root, signal, scope, limit }: port.SetLimitRequest): Promise<budget.SetLimitResult> {
    const field = this.#entriesOf([scope]).fields;
    const [, name = '', period = ''] = field.split('|');
    const args = { scope: name, period, field, limit: limit === null ? '-' : encodeLimit(limit) };
    return this.#run(scripts.setLimitScript, { root, signal, ...args }, ([status]) => ({
      ok: true,
      status: status === 'cleared' ? status : 'set',
    }));
  }

  async balance({ root, signal, scope }: port.BalanceRequest) {
    const call = { root, signal, scopes: [scope] };
    return this.#run(scripts.balanceScript, call, ([, ...lists]) => replies.parseBalances(lists));
  }

  async get(request: port.HoldRequest) {
    return this.#step(scripts.getScript, request, ([status, packed, nowMs]) =>
      status === 'found' ? replies.parseRecord(packed, request, Number(nowMs)) : null,
    );
  }

  async list({ root, signal, cursor, limit }: port.ListRequest) {
    const call = { root, signal, pattern: '[oO]|*', cursor: cursor ?? '0', limit };
    return this.#run(scripts.pageScript, call, ([, next = '0', nowMs, ...found]) => {
      const records = inGroups(2, found).flatMap(([field = '', packed]) => {
        // A record that cannot be read stops nobody. `verify` lists it.
        const parse = () => replies.parseRecord(packed, { root, id: replies.idOf(field) }, Number(nowMs));
        return replies.readable(parse) ?? [];
      });
      return { records, cursor: next === '0' ? null : next };
    });
  }

  async reap(request: port.ReapRequest) {
    return this.#run(scripts.reaperScript, request, toReapStep);
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
    const call = { root, signal, pattern: 'c|*', cursor, limit };
    return this.#run(scripts.pageScript, call, ([, next, , ...found]) => ({
      names: inGroups(2, found).map(([field]) => replies.scopeOf(field)),
      cursor: next === '0' ? undefined : next,
    }));
  }

  async roots({ used, reaped, ...rest }: port.RootsRequest) {
    const keys = { registry: `${this.config.keyPrefix}/budget-roots` };
    const [untilMs, ...roots] = await this.runner.run(scripts.rootsScript, keys, {
      used: used.map(encodeURIComponent).join(' '),
      reaped: reaped
        .map((each) => [encodeURIComponent(each.root), each.untilMs, each.nextInMs ?? ''].join('='))
        .join(' '),
      ...rest,
    });
    return { untilMs: Number(untilMs), roots: roots.map(decodeURIComponent) };
  }

  async verify({ root, signal, repair }: port.VerifyRequest) {
    if (repair) await this.#run(scripts.repairScript, { root, signal }, () => undefined);
    return this.#run(scripts.snapshotScript, { root, signal }, ([, ...reply]) =>
      verifySnapshot(parseSnapshot(reply)),
    );
  }

  /** Runs a script on the operation that has an id. */
  #step<Arg extends string, Result>(
    script: BudgetScript<Arg>,
    call: Call<NoInfer<Result>> & Named<Arg> & ReplyContext,
    parse: (reply: replies.TextReply, call: ReplyContext) => Result,
    refundTag?: string,
  ): Promise<Result> {
    return this.#run(script, call, parse, tagOf('o', call.id), refundTag);
  }

  /**
   * Runs a script. While it replies 'more', it has only settled a full batch of expired holds, and runs again. So it does
   * where the windows of the call are not those of the server's clock.
   */
  async #run<Arg extends string, Result, Context extends Call<NoInfer<Result>> & Named<Arg>>(
    script: BudgetScript<Arg>,
    call: Context,
    parse: (reply: replies.TextReply, call: Context) => Result,
    ...tags: (string | undefined)[]
  ): Promise<Result> {
    const { root, signal, onLate, onResent: onReplay } = call;
    const keys = this.#keysOf(root, ...tags);
    // A server that answers as ours do is done long before.
    const endMs = performance.now() + MOST_TIMEOUTS * this.runner.commandTimeoutMs;
    const late = (reply: replies.TextReply): void => {
      if (!NO_ANSWER.has(reply[0])) onLate?.(parse(reply, call));
    };
    const listeners = { signal, onReplay, onLate: onLate && late };
    try {
      for (let attempt = 1; ;) {
        const entries = call.scopes && this.#entriesOf(call.scopes);
        const all = Object.assign({}, entries, call, this.config) as Record<Arg, ScriptArg>;
        const reply = await this.runner.run(script, keys, all, listeners);
        if (!NO_ANSWER.has(reply[0])) return parse(reply, call);
        if (reply[0] === 'too_large') throw tooLarge();
        const isStale = reply[0] === 'stale';
        if (isStale) this.#skewMs = Number(reply[1]) - Date.now();
        if (performance.now() > endMs || (isStale && attempt++ === STALE_ATTEMPTS)) throw endless(reply[0]);
      }
    } catch (error) {
      throw BudgetUnavailableError.from(error);
    }
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

const endless = (status: string): BudgetUnavailableError =>
  new BudgetUnavailableError({
    code: 'Internal',
    message: `The server answered '${status}' again and again, so the call gave up. Nothing was counted.`,
    hint:
      status === 'stale'
        ? 'Let the time service of the server adjust its clock slowly and never set it, and compare the clocks of all servers.'
        : 'Look for a proxy or a module that changes replies, and for another program that writes to the keys of budgets.',
  });

/** These replies ask for another call, or refuse this one. They carry no answer. */
const NO_ANSWER: ReadonlySet<string> = new Set(['more', 'stale', 'too_large']);

/** Percent-encodes a root, so that it has no braces. A long one becomes `#`, which no encoding has, and its SHA-256. */
function encodeRoot(root: string): string {
  const encoded = encodeURIComponent(root);
  if (encoded.length <= LONGEST_ROOT) return encoded;
  return `#${hash('sha256', root, 'base64url')}`;
}

function toReapStep([, purged, nextInMs, count, ...found]: replies.TextReply): port.ReapStep {
  const expired = found.splice(0, Number(count));
  return {
    expired,
    quarantined: inGroups(2, found).map(([field = '', reserved]) => ({
      field,
      reserved: reserved ? Number(reserved) : null,
    })),
    purged: Number(purged),
    nextInMs: nextInMs === '-1' ? null : Number(nextInMs),
  };
}
