import { accountOf, isNamed, isTagged, keyTagOf, nameOf, whoseOf } from '../limit.identity.js';
import { type Page, pageOf, pageOfNames } from '../../core/page.js';
import { refuseAborted } from '../../core/validate.js';
import { type Clock, systemClock } from '../../core/clock.js';
import {
  type BackendDecision,
  type BlockedPage,
  type CallOptions,
  type ConfirmOptions,
  keepMs,
  type LimitBackend,
  type LimitCheck,
  longestWindowMs,
  type Subject,
} from '../limit.backend.js';
import { LimitError } from '../limit.errors.js';
import type { BlockedKey, BlockTag, FoundAttempts } from '../limit.types.js';
import { type Block, Ledger } from './ledger.js';
import { LedgerStore } from './ledger-store.js';
import * as log from './log.decider.js';
import { peekWindow, window } from './window.decider.js';

/** Limits in the memory of one process. Each method takes the same steps as the script of the Redis backend. */
export class MemoryLimitBackend implements LimitBackend {
  readonly backend = 'memory';
  readonly #ledgers: LedgerStore;

  constructor(private readonly clock: Clock = systemClock) {
    this.#ledgers = new LedgerStore(clock);
  }

  get size(): number {
    return this.#ledgers.size;
  }

  async check(
    checks: readonly LimitCheck[],
    callId: string,
    options?: CallOptions,
  ): Promise<BackendDecision[]> {
    const nowMs = this.#start(options);
    const decide = (check: LimitCheck, commit: boolean): BackendDecision => {
      const ledger = check.cost === 0 ? this.#seen(check, nowMs) : this.#ledgers.take(check.identity, nowMs);
      const { policy, cost } = check;
      const ask = { ledger, rules: policy.rules, cost, callId, nowMs, commit };
      return decideUnlessBlocked(deciderOf(check), ask);
    };
    const [only] = checks;
    if (only && checks.length === 1) return [decide(only, true)];
    const decisions = checks.map((check) => decide(check, false));
    const allowed = decisions.every(({ status }) => status === 'allowed');
    return checks.map((check, i) => {
      const decision = decisions[i] as BackendDecision;
      return (decision.status === 'allowed') === allowed ? decide(check, true) : decision;
    });
  }

  async confirm(
    { identity, policy, cost }: LimitCheck,
    callId: string,
    options?: ConfirmOptions,
  ): Promise<BackendDecision> {
    const nowMs = this.#start(options);
    const ledger = this.#ledgers.take(identity, nowMs);
    const ask = { ledger, rules: policy.rules, cost, callId, nowMs, commit: true };
    if (options?.blocks === false) return log.fill(ask);
    return policy.count === 'success' ? log.grant(ask) : log.confirm(ask);
  }

  async renew({ identity, policy }: LimitCheck, callId: string, options?: CallOptions): Promise<void> {
    const nowMs = this.#start(options);
    const ledger = this.#ledgers.peek(identity, nowMs);
    const flight = ledger?.inFlight.get(callId);
    if (!ledger || !flight) return;
    flight.renewedMs = nowMs;
    ledger.endsAtMs = nowMs + keepMs(policy.rules);
  }

  async withdraw(check: LimitCheck, callId: string, forget: boolean, options?: CallOptions): Promise<void> {
    if (check.policy.algorithm === 'fixed-window')
      return void (await this.forgive(check, check.cost, callId, options));
    const nowMs = this.#start(options);
    const ledger = this.#ledgers.take(check.identity, nowMs);
    ledger.inFlight.delete(callId);
    ledger.attempts.withdraw(callId);
    if (!forget || ledger.liveBlock(nowMs)) return;
    const route = log.routeOf(callId);
    ledger.attempts.dropCalls((each) => log.routeOf(each) === route);
    if (ledger.penalties.struckBy === route) ledger.penalties = { ...ledger.penalties, strikes: [0, 0] };
  }

  async peek(check: LimitCheck, options?: CallOptions): Promise<BackendDecision> {
    const nowMs = this.#start(options);
    const { cost, policy } = check;
    const { rules, algorithm } = policy;
    const ledger = this.#seen(check, nowMs);
    const ask = { ledger, rules, cost, callId: '', nowMs, commit: false };
    const decider = algorithm === 'fixed-window' ? peekWindow : log.peek;
    const decision = decideUnlessBlocked(cost === 0 ? look : decider, ask);
    if (decision.status !== 'allowed') return decision;
    // A window that was forgiven to 0 is like one that is not there.
    const isUnknown = algorithm === 'fixed-window' ? decision.shortCount === 0 : ledger.isEmpty();
    return isUnknown ? { ...decision, isUnknown } : decision;
  }

  async forgive(
    subject: Subject,
    count: number,
    callId: string,
    options?: CallOptions,
  ): Promise<FoundAttempts> {
    const nowMs = this.#start(options);
    const found = this.#found(subject, nowMs);
    const ledger = this.#ledgers.take(subject.identity, nowMs);
    if (ledger.lastForgiven === callId) return found;
    ledger.lastForgiven = callId;
    ledger.attempts.dropNewest(count);
    const open = ledger.openWindow(nowMs);
    if (open) ledger.window = { count: Math.max(0, open.count - count), endsAtMs: open.endsAtMs };
    return found;
  }

  async reset(subject: Subject, options?: CallOptions): Promise<FoundAttempts> {
    const found = this.#found(subject, this.#start(options));
    this.#ledgers.delete(subject.identity);
    return found;
  }

  async block({ identity }: Subject, blockMs: number, reason: string, options?: CallOptions): Promise<void> {
    const nowMs = this.#start(options);
    const byHand = { scope: 'manual', reason: reason || 'manual', shortCount: 0, longCount: 0 } as const;
    const ledger = this.#ledgers.take(identity, nowMs);
    ledger.window = ledger.openWindow(nowMs);
    ledger.block = { ...byHand, endsAtMs: nowMs + blockMs };
  }

  async unblock(subject: Subject, options?: CallOptions): Promise<FoundAttempts> {
    const nowMs = this.#start(options);
    const found = this.#found(subject, nowMs);
    this.#ledgers.take(subject.identity, nowMs).block = undefined;
    return found;
  }

  /** There is nothing to note: operators and `lift` look at all ledgers. */
  async note(): Promise<void> {}

  async lift(account: string, options?: CallOptions): Promise<number> {
    const nowMs = this.#start(options);
    const lifted = this.#blocks(nowMs).filter(
      ([identity, { scope }]) => scope !== 'manual' && accountOf(identity) === account,
    );
    for (const [identity] of lifted) this.#ledgers.delete(identity);
    return lifted.length;
  }

  /** The cursor is a hash, as an identity names a person. */
  async blocked({ policy, ...page }: BlockedPage): Promise<Page<BlockedKey>> {
    const blocks = this.#blocks(this.#start(page)).filter(([identity]) => isNamed(nameOf(identity), policy));
    const byTag = new Map(blocks.map((each) => [keyTagOf(each[0]), each]));
    const { names, cursor } = pageOfNames(byTag.keys(), page);
    const items = names.map((tag): BlockedKey => {
      const [identity, { scope, reason, endsAtMs }] = byTag.get(tag) as [string, Block];
      return { ...whoseOf(identity), scope, reason, endsAtMs };
    });
    return pageOf(items, cursor);
  }

  async unblockTagged(which: BlockTag, options?: CallOptions): Promise<number> {
    const nowMs = this.#start(options);
    const isMeant = isTagged(which);
    const ended = this.#blocks(nowMs).filter(([identity]) => isMeant(identity));
    for (const [identity] of ended) this.#ledgers.take(identity, nowMs).block = undefined;
    return ended.length;
  }

  goOnFrom({ identity, policy }: Subject, last: BackendDecision, agoMs: number): void {
    const nowMs = this.clock.now();
    const atMs = nowMs - Math.ceil(agoMs);
    const ledger = this.#ledgers.take(identity, nowMs);
    const { rules } = policy;
    if (last.status === 'denied' && last.blocked) {
      const { scope, reason, shortCount, longCount } = last;
      const endsAtMs = atMs + last.retryAfterMs;
      ledger.block ??= { scope, reason, shortCount, longCount, endsAtMs };
    } else if (policy.algorithm === 'fixed-window') {
      const endsAtMs = atMs + (last.status === 'denied' ? last.retryAfterMs : last.resetMs);
      const open = ledger.openWindow(nowMs) ?? { count: 0, endsAtMs };
      ledger.window = { count: Math.max(open.count, last.shortCount), endsAtMs: open.endsAtMs };
    } else {
      // Those of the long window that the short one does not have are at least as old as the short one.
      const olderMs = atMs - rules.tiers[0].windowMs;
      const add = (heard: number, fromMs: number, addedAtMs: number): void => {
        const more = heard - ledger.attempts.countAfter(fromMs);
        if (more > 0) ledger.attempts.add(`last ${addedAtMs}`, addedAtMs, more);
      };
      add(last.shortCount, olderMs, atMs);
      add(last.longCount, nowMs - longestWindowMs(rules), olderMs);
      ledger.endsAtMs = nowMs + keepMs(rules);
    }
  }

  #blocks(nowMs: number): [identity: string, block: Block][] {
    return [...this.#ledgers.entries()].flatMap(([identity, ledger]) => {
      const block = ledger.liveBlock(nowMs);
      return block ? [[identity, block] as [string, Block]] : [];
    });
  }

  /** Refuses a call whose signal is aborted. Returns the time of the call. */
  #start(options: CallOptions | undefined): number {
    refuseAborted(options?.signal, LimitError);
    return this.clock.now();
  }

  #found(subject: Subject, nowMs: number): FoundAttempts {
    const ledger = this.#seen(subject, nowMs);
    const logged = ledger.attempts.countAfter(nowMs - longestWindowMs(subject.policy.rules));
    const counted = ledger.openWindow(nowMs)?.count ?? 0;
    return { blocked: ledger.liveBlock(nowMs) !== undefined, attempts: logged + counted };
  }

  /** Returns the ledger of an identity for a look at it. An unknown identity is not kept. */
  #seen({ identity }: Subject, nowMs: number): Ledger {
    return this.#ledgers.peek(identity, nowMs) ?? UNKNOWN;
  }
}

/** The ledger of who is not known. Looking changes nothing. */
const UNKNOWN = new Ledger();

const DECIDERS = { attempt: log.attempt, failure: log.enter, success: log.reserve };

function deciderOf({ policy, cost }: LimitCheck): log.Decider {
  if (cost === 0) return look;
  return policy.algorithm === 'fixed-window' ? window : DECIDERS[policy.count];
}

function decideUnlessBlocked(decider: log.Decider, ask: log.Ask): BackendDecision {
  const block = ask.ledger.liveBlock(ask.nowMs);
  return block ? log.blocked(block, ask.nowMs) : decider(ask);
}

/** The decider of calls that are not counted. A limit of 0 denies them. */
function look({ rules }: log.Ask): BackendDecision {
  const nothing = { shortCount: 0, longCount: 0 };
  const [{ threshold, windowMs }] = rules.tiers;
  return threshold === 0 ? log.denied(nothing, windowMs) : { status: 'allowed', ...nothing, resetMs: 0 };
}
