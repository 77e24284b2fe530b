import type { BackendDecision, LimitRules } from '../../lib/limit/limit.backend.js';

interface Given {
  readonly algorithm: 'sliding-log' | 'fixed-window';
  readonly rules: LimitRules;
  readonly count: 'attempt' | 'failure' | 'success';
}

/** A policy with the numbers of both tiers side by side. Without a long tier its threshold is 0. */
type Policy = Omit<Given, 'rules'> & { readonly rules: ReturnType<typeof numbersIn> };

const numbersIn = ({ tiers: [short, long], ...rest }: LimitRules) => ({
  ...{ shortWindowMs: short.windowMs, shortThreshold: short.threshold, shortBlockMs: short.blockMs },
  ...{
    longWindowMs: long?.windowMs ?? 0,
    longThreshold: long?.threshold ?? 0,
    longBlockMs: long?.blockMs ?? 0,
  },
  ...rest,
});

const read = (given: Given): Policy => ({ ...given, rules: numbersIn(given.rules) });

interface Limit {
  readonly identity: string;
  readonly policy: Given;
  readonly cost: number;
}

interface State {
  attempts: { id: string; at: number }[];
  /** `at` is when a flight was renewed, `began` when it began. */
  pending: { id: string; at: number; began: number }[];
  /** When attempts and calls in flight are forgotten. */
  keptUntil: number;
  block?: {
    scope: 'temp' | 'long' | 'manual';
    reason: string;
    short: number;
    long: number;
    ends: number;
  };
  served: { short: number; long: number };
  strikes: { short: number; long: number };
  /** The route that set all blocks, or `*`. */
  struckBy: string;
  strikesEnd: number;
  forgiven?: string;
  window?: { count: number; ends: number };
}

const SECOND = 1000;
const IN_FLIGHT = 60 * SECOND;

/**
 * The limiter's rules over arrays of timestamps, written for the eye: each question looks at every attempt anew.
 * It shares no code with the backends.
 */
export class LimitModel {
  private readonly states = new Map<string, State>();
  now = 0;

  check(limits: Limit[], id: string): BackendDecision[] {
    const before = structuredClone(this.states);
    const tried = limits.map((limit) => this.one(limit.identity, read(limit.policy), limit.cost, id));
    const denials = tried.filter((decision) => decision.status === 'denied').length;
    if (denials === 0 || limits.length === 1) return tried;
    // Somebody denies: those that would have let the call in are as they were.
    return limits.map(({ identity, policy: given }, i) => {
      const policy = read(given);
      const decision = tried[i] as BackendDecision;
      if (decision.status === 'denied' || limits[i]?.cost === 0) return decision;
      this.states.set(identity, before.get(identity) ?? fresh());
      const state = this.at(identity);
      if (policy.algorithm === 'fixed-window') return this.counted(state, policy);
      this.prune(state, policy, false);
      return allowed(policy, this.short(state, policy).length, this.long(state, policy).length);
    });
  }

  /** A call that has ended is counted whatever stands, and at most then sets a block. */
  confirm(identity: string, given: Given, cost: number, id: string, blocks = true): BackendDecision {
    const policy = read(given);
    const state = this.at(identity);
    this.catchUp(state);
    if (!state.attempts.some((attempt) => attempt.id === id)) {
      state.pending = state.pending.filter((attempt) => attempt.id !== id);
      for (let i = 0; i < cost; i++) state.attempts.push({ id, at: this.latest(state) });
      this.keep(state, policy);
    }
    if (this.blocked(state)) return this.blockOf(state);
    this.prune(state, policy);
    const next = policy.count === 'success' ? 1 : 0;
    return (blocks && this.blockIfFull(state, policy, next, id)) || this.countsOf(state, policy);
  }

  renew(identity: string, given: Given, id: string): void {
    const policy = read(given);
    const state = this.at(identity);
    for (const each of state.pending.filter((flight) => flight.id === id)) {
      each.at = this.now;
      this.keep(state, policy);
    }
  }

  /** A log is kept for three windows, but not for more than a minute after its own. Flights need that minute. */
  private keep(state: State, { rules, count }: Policy, isNew = false): void {
    const windowMs = Math.max(rules.shortWindowMs, rules.longWindowMs);
    const slackMs = count === 'attempt' ? Math.min(2 * windowMs, 60 * SECOND) : 60 * SECOND;
    // Attempts alone are kept anew once half of that is used up.
    const isLate = isNew || count !== 'attempt' || state.keptUntil < this.now + windowMs + slackMs / 2;
    if (isLate) state.keptUntil = this.now + windowMs + slackMs;
  }

  private enter(state: State, policy: Policy, cost: number, id: string): BackendDecision {
    const known = [...state.attempts, ...state.pending].some((attempt) => attempt.id === id);
    this.prune(state, policy);
    if (known) return this.countsOf(state, policy);
    const { shortThreshold, longThreshold, shortWindowMs, longWindowMs, shortBlockMs } = policy.rules;
    const needed = policy.count === 'failure' && shortBlockMs > 0 ? 0 : cost;
    const tiers = [{ held: this.short(state, policy), most: shortThreshold - 1, windowMs: shortWindowMs }];
    if (longThreshold > 0)
      tiers.push({ held: this.long(state, policy), most: longThreshold - 1, windowMs: longWindowMs });
    const counts = {
      shortCount: this.short(state, policy).length,
      longCount: this.long(state, policy).length,
    };
    const no = (reason: string, retryAfterMs: number): BackendDecision => ({
      ...{ status: 'denied', scope: 'temp', reason, retryAfterMs },
      ...{ ...counts, blocked: false },
    });
    const waits = tiers.map(({ held, most, windowMs }) => {
      const mustLeave = held.length + needed - most;
      const inOrder = held.map(({ at }) => at).sort((a, b) => a - b);
      if (mustLeave < 1 || mustLeave > held.length) return 0;
      return Math.min(windowMs, (inOrder[mustLeave - 1] as number) + windowMs - this.now);
    });
    if (Math.max(...waits) > 0) return no('temp', Math.max(...waits));
    if (tiers.some(({ held, most }) => held.length + state.pending.length + needed > most))
      return no('busy', SECOND);
    for (let i = 0; i < cost; i++) state.pending.push({ id, at: this.now, began: this.now });
    this.keep(state, policy);
    return this.countsOf(state, policy);
  }

  private countsOf(state: State, policy: Policy): BackendDecision {
    return allowed(policy, this.short(state, policy).length, this.long(state, policy).length);
  }

  withdraw({ identity, policy, cost }: Limit, id: string, forget: boolean): void {
    if (policy.algorithm === 'fixed-window') return this.forgive(identity, cost, id);
    const state = this.at(identity);
    state.attempts = state.attempts.filter((attempt) => attempt.id !== id);
    state.pending = state.pending.filter((attempt) => attempt.id !== id);
    if (!forget || this.blocked(state)) return;
    state.attempts = state.attempts.filter((attempt) => routeOf(attempt.id) !== routeOf(id));
    if (state.struckBy === routeOf(id)) state.strikes = { short: 0, long: 0 };
  }

  peek({ identity, policy: given, cost }: Limit): BackendDecision {
    const policy = read(given);
    const state = this.at(identity);
    if (this.blocked(state)) return this.blockOf(state);
    if (policy.algorithm === 'fixed-window') {
      const standing = this.open(state);
      const { shortThreshold, shortBlockMs } = policy.rules;
      return standing && shortBlockMs === 0 && standing.count + cost >= shortThreshold
        ? this.usedUp(standing, policy)
        : this.counted(state, policy);
    }
    const short = this.short(state, policy);
    const counts = { shortCount: short.length, longCount: this.long(state, policy).length };
    const { shortWindowMs, shortThreshold, shortBlockMs } = policy.rules;
    if (shortBlockMs === 0 && short.length + cost >= shortThreshold)
      return this.full(short, counts, policy, cost);
    const resetMs =
      short.length === 0
        ? 0
        : Math.min(shortWindowMs, Math.max(...state.attempts.map(({ at }) => at)) + shortWindowMs - this.now);
    return { status: 'allowed', ...counts, resetMs };
  }

  forgive(identity: string, n: number, id: string): void {
    const state = this.at(identity);
    if (state.forgiven === id) return;
    state.forgiven = id;
    const window = this.open(state);
    if (window) window.count = Math.max(0, window.count - n);
    state.attempts = state.attempts
      .sort((a, b) => a.at - b.at)
      .slice(0, Math.max(0, state.attempts.length - n));
  }

  reset(identity: string): void {
    this.states.delete(identity);
  }

  block(identity: string, ms: number, reason: string): void {
    const state = this.at(identity);
    if (!this.open(state)) delete state.window;
    state.block = { scope: 'manual', reason, short: 0, long: 0, ends: this.now + ms };
  }

  unblock(identity: string): void {
    delete this.at(identity).block;
  }

  private one(identity: string, policy: Policy, cost: number, id: string): BackendDecision {
    const state = this.at(identity);
    if (this.blocked(state)) return this.blockOf(state);
    if (cost === 0) return uncountedDecision(policy);
    if (policy.algorithm === 'fixed-window') return this.inWindow(state, policy, cost);
    this.catchUp(state);
    if (policy.count !== 'attempt') return this.enter(state, policy, cost, id);
    this.prune(state, policy);
    const short = this.short(state, policy);
    const counts = { shortCount: short.length, longCount: this.long(state, policy).length };
    const known = state.attempts.some((attempt) => attempt.id === id);
    if (!known && policy.rules.shortBlockMs === 0 && short.length + cost >= policy.rules.shortThreshold)
      return this.full(short, counts, policy, cost);
    return this.count(state, policy, cost, id);
  }

  private inWindow(state: State, policy: Policy, cost: number): BackendDecision {
    const { rules } = policy;
    const window = this.open(state) ?? { count: 0, ends: Infinity };
    const fits = window.count + cost < rules.shortThreshold;
    const blocks = !fits && rules.shortBlockMs > 0;
    const latest = this.now + rules.shortWindowMs;
    if (fits || window.ends > latest) delete state.block;
    // A window that ends later than one that begins now, since the clock stepped back, begins now.
    window.ends = Math.min(window.ends, latest);
    if (blocks) return this.blockWindow(state, window, policy, cost);
    if (!fits) return this.usedUp(window, policy);
    state.window = { ...window, count: window.count + cost };
    return this.counted(state, policy);
  }

  private open({ window }: State): State['window'] {
    return window && this.now < window.ends ? window : undefined;
  }

  private counted(state: State, { rules }: Policy): BackendDecision {
    const { count, ends } = this.open(state) ?? { count: 0, ends: 0 };
    const resetMs = count > 0 ? Math.min(rules.shortWindowMs, ends - this.now) : 0;
    return { status: 'allowed', shortCount: count, longCount: count, resetMs };
  }

  private blockWindow(
    state: State,
    window: NonNullable<State['window']>,
    { rules }: Policy,
    cost: number,
  ): BackendDecision {
    const count = window.count + cost;
    state.window = { ...window, count: 0 };
    state.block = {
      scope: 'temp',
      reason: 'temp',
      short: count,
      long: count,
      ends: this.now + rules.shortBlockMs,
    };
    return this.blockOf(state);
  }

  private usedUp({ count, ends }: NonNullable<State['window']>, { rules }: Policy): BackendDecision {
    return {
      status: 'denied',
      scope: 'temp',
      reason: 'temp',
      retryAfterMs: Math.min(rules.shortWindowMs, ends - this.now),
      shortCount: count,
      longCount: count,
      blocked: false,
    };
  }

  private count(state: State, policy: Policy, cost: number, id: string): BackendDecision {
    if (!state.attempts.some((attempt) => attempt.id === id)) {
      this.keep(state, policy, state.attempts.length === 0);
      for (let i = 0; i < cost; i++) state.attempts.push({ id, at: this.latest(state) });
      const block = this.blockIfFull(state, policy, 0, id);
      if (block) return block;
    }
    return this.countsOf(state, policy);
  }

  /** `next`: 1 if the tier is full when another one would be too many. */
  private blockIfFull(state: State, policy: Policy, next: number, id: string): BackendDecision | undefined {
    const { rules } = policy;
    const short = this.short(state, policy).length;
    const long = this.long(state, policy).length;
    const longIsFull = rules.longThreshold > 0 && long + next >= rules.longThreshold;
    const shortIsFull = short + next >= rules.shortThreshold;
    if (rules.shortBlockMs === 0 || (!longIsFull && !shortIsFull)) return undefined;
    const scope = longIsFull ? 'long' : 'temp';
    const newest = Math.max(...state.attempts.map((attempt) => attempt.at));
    if (shortIsFull) state.served.short = newest;
    if (longIsFull) state.served.long = newest;
    const tier = longIsFull ? 'long' : 'short';
    const isFirst = state.strikes.short + state.strikes.long === 0;
    state.struckBy = isFirst || state.struckBy === routeOf(id) ? routeOf(id) : '*';
    state.strikes[tier]++;
    const base = longIsFull ? rules.longBlockMs : rules.shortBlockMs;
    const ms = Math.floor(Math.min(rules.maxBlockMs, base * rules.factor ** (state.strikes[tier] - 1)));
    state.strikesEnd = this.now + ms + rules.penaltiesTtlMs;
    state.block = { scope, reason: scope, short, long, ends: this.now + ms };
    return this.blockOf(state);
  }

  private full(
    short: { at: number }[],
    counts: { shortCount: number; longCount: number },
    { rules }: Policy,
    cost: number,
  ): BackendDecision {
    const inOrder = short.map(({ at }) => at).sort((a, b) => a - b);
    const mustLeave = short.length + cost - (rules.shortThreshold - 1);
    const leavesAt = (inOrder[mustLeave - 1] as number) + rules.shortWindowMs;
    const retryAfterMs = Math.min(rules.shortWindowMs, leavesAt - this.now);
    return { status: 'denied', scope: 'temp', reason: 'temp', retryAfterMs, ...counts, blocked: false };
  }

  private at(identity: string): State {
    const state = this.states.get(identity) ?? fresh();
    this.states.set(identity, state);
    if (this.now > state.strikesEnd) {
      state.served = { short: 0, long: 0 };
      state.strikes = { short: 0, long: 0 };
    }
    if (this.now > state.keptUntil) Object.assign(state, { attempts: [], pending: [] });
    // A fixed window and the block before it are one thing, which is forgotten as a whole.
    if (this.now > Math.max(state.block?.ends ?? 0, state.window?.ends ?? 0)) {
      delete state.block;
      delete state.window;
    }
    return state;
  }

  private short(state: State, { rules }: Policy): { at: number }[] {
    return state.attempts.filter(({ at }) => at > this.now - rules.shortWindowMs && at > state.served.short);
  }

  private long(state: State, policy: Policy): { at: number }[] {
    const { longWindowMs, longThreshold } = policy.rules;
    if (longThreshold === 0) return this.short(state, policy);
    return state.attempts.filter(({ at }) => at > this.now - longWindowMs && at > state.served.long);
  }

  /** What no window holds any more does not come back when the clock steps back. */
  private prune(state: State, policy: Policy, commits = true): void {
    if (policy.count !== 'attempt') {
      if (commits)
        for (const flight of state.pending) {
          flight.at = Math.min(flight.at, this.now);
          flight.began = Math.min(flight.began, this.now);
        }
      const lapsed = state.pending.filter(({ at }) => at <= this.now - IN_FLIGHT);
      state.attempts.push(...lapsed.map(({ id, began }) => ({ id, at: began })));
      state.pending = state.pending.filter(({ at }) => at > this.now - IN_FLIGHT);
    } else state.pending = [];
    const held = new Set([...this.short(state, policy), ...this.long(state, policy)]);
    state.attempts = state.attempts.filter((attempt) => held.has(attempt));
    if (commits) for (const attempt of state.attempts) attempt.at = Math.min(attempt.at, this.latest(state));
  }

  private latest({ served }: State): number {
    return Math.max(this.now, served.short + 1, served.long + 1);
  }

  /** The clock has stepped back behind a block: what is ahead of it happens now, in its order. */
  private catchUp(state: State): void {
    const { short, long } = state.served;
    if (Math.max(short, long) <= this.now) return;
    const now = (at: number): number => {
      if (at <= this.now - 3) return at;
      return this.now - (at <= Math.min(short, long) ? 2 : at <= Math.max(short, long) ? 1 : 0);
    };
    for (const attempt of state.attempts) attempt.at = now(attempt.at);
    state.served = { short: now(short), long: now(long) };
  }

  private blocked(state: State): boolean {
    return state.block !== undefined && this.now < state.block.ends;
  }

  private blockOf(state: State): BackendDecision {
    const { scope, reason, short, long, ends } = state.block as NonNullable<State['block']>;
    return {
      status: 'denied',
      scope,
      reason,
      retryAfterMs: ends - this.now,
      shortCount: short,
      longCount: long,
      blocked: true,
    };
  }
}

const uncountedDecision = ({ rules }: Policy): BackendDecision => {
  const nothing = { shortCount: 0, longCount: 0 };
  if (rules.shortThreshold > 0) return { status: 'allowed', ...nothing, resetMs: 0 };
  return {
    ...{ status: 'denied', scope: 'temp', reason: 'temp', retryAfterMs: rules.shortWindowMs },
    ...{ ...nothing, blocked: false },
  };
};

const fresh = (): State => ({
  attempts: [],
  pending: [],
  keptUntil: 0,
  served: { short: 0, long: 0 },
  strikes: { short: 0, long: 0 },
  struckBy: '',
  strikesEnd: 0,
});

const routeOf = (id: string): string => id.slice(8);

const allowed = ({ rules }: Policy, shortCount: number, longCount: number): BackendDecision => ({
  status: 'allowed',
  shortCount,
  longCount,
  resetMs: shortCount > 0 ? rules.shortWindowMs : 0,
});
