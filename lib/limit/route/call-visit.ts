import type { ExecutionContext } from '@nestjs/common';
import type { CallDecision, CountedCall, Decisions } from '../decisions.js';
import { refusalBy, type TooManyAttemptsError } from '../limit.errors.js';
import type { PolicyCheck, ResolvedPolicy } from '../limit.policy.js';
import { IN_FLIGHT_MS } from '../limit.times.js';
import type { CallEnd, DeniedDecision } from '../limit.types.js';
import { type EndingCall, endOf, isGone, locationOf, rawOf, watchResponse } from './call-end.js';
import { hasNoVerdict, type Outcome, outcomeOf, predicateResult, statusOfError } from './call-outcome.js';
import type { LimitedCall } from './limited-call.js';

/** When limits are asked: by the global guard, before the other guards of a route, or after them. */
export type Stage = 'default' | 'before' | 'after';

/** The limits of one route, by the stage at which they are asked. */
export interface Plan {
  /** The route as it follows the ids of its calls: see `createCallId`. */
  readonly routeTag: string;
  /** The limits of the policy `default` that are asked by the global guard, with their watching policies. */
  readonly default: readonly ResolvedPolicy[];
  /** The limits of the route that are asked before its guards, with their watching policies. */
  readonly before: readonly ResolvedPolicy[];
  /** The limits of the route that are asked after all guards. */
  readonly after: readonly ResolvedPolicy[];
  /** The limits of the policy `default` that are asked after all guards, if the global guard is bound. */
  readonly defaultAfter: readonly ResolvedPolicy[];
}

/** What a call needs of its app. Several apps of a process may share the methods they call. */
export interface VisitedApp {
  readonly limiter: { readonly decisions: Pick<Decisions, 'confirm' | 'withdraw' | 'renew'> };
  /** How long a call is kept in flight, in ms. */
  readonly maxFlightMs: number;
  guardsPassed(visit: CallVisit): Promise<boolean> | true;
  /** Rejects with the error to answer, for a failure that has set a block or could not be counted. */
  refuse(visit: CallVisit, error: unknown): Promise<never>;
  /** Called when limits have counted the call, for the headers of its answer. */
  counted(visit: CallVisit, decided: CallDecision): void;
  /** Called for a status that may mean a failure, if the policy has no `isFailure` to judge it. */
  hasNoVerdict(visit: CallVisit, policy: ResolvedPolicy, status: number): void;
}

/** The limits by which a call has entered together, and that count it by how it ends. */
interface Flight {
  readonly checks: readonly PolicyCheck[];
  readonly counted: CountedCall;
  /** Whether only a refusal by a guard counts. */
  readonly untilHandler: boolean;
}

/** What settles a call. */
interface Settlement {
  outcomeOf(policy: ResolvedPolicy): Outcome;
  /** Whether a failure may set a block. An error of the server only fills the window. */
  readonly blocks: boolean;
}

/** No limit counts the call. */
const TAKEN_BACK: Settlement = { outcomeOf: () => 'neither', blocks: false };

/** The guards have let the call pass. */
const LET_PASS: Settlement = { outcomeOf: () => 'success', blocks: false };

/** The client has left, which must not be a free guess. So every limit counts the call. */
const HUNG_UP: Settlement = {
  outcomeOf: ({ count }) => (count === 'success' ? 'success' : 'failure'),
  blocks: true,
};

/** How often a call in flight is renewed, in ms. */
const RENEW_MS = IN_FLIGHT_MS / 2;

/**
 * One call on its way through guards, handler and response. It passes each stage of limits once, however often our guards are
 * bound, and is settled once: then each limit that counts calls by how they end knows how this one ended.
 *
 * ```
 * in guards ── handlerReached ──▶ in handler
 *     │                               │
 *     │ refused by us: taken back     │ handlerReturned, handlerThrew: a failure is settled before its answer leaves,
 *     │ threw: by its status          │   so that the answer can still become a 429. Outside of HTTP: any end
 *     │                               │ unsubscribed (outside of HTTP): as a hang-up
 *     │                               │
 *     ├── headersWritten (HTTP): by their status, whoever wrote them ──┤
 *     ├── connectionClosed, or gone when a limit asked: a hang-up ─────┤
 *     │ 30 s without a handler outside of HTTP: a hang-up              │
 *     ▼                                                                ▼
 *  settled: what enters now is settled in the same way, at once
 * ```
 *
 * Whatever the client does with the answer, it leaves one of these ways: headers are written by us, even if nobody reads
 * them. A call that never ends is renewed for `maxFlightMs`. Then its flight lapses in the backend, and the call counts. So
 * does one whose process died.
 */
export class CallVisit implements EndingCall {
  readonly passed = new Set<Stage>();
  readonly isHttp: boolean;
  /** Whether the handler itself was called. A pipe or an interceptor before it may have refused the call. */
  handled = false;
  exempt?: boolean | Promise<boolean>;
  /** Whether another handler of this request has asked all of `default`, also what is asked after the guards. */
  isDefaultAsked = false;
  /** What limits have decided about this call, stage by stage. */
  decided?: CallDecision[];
  /** The policy that has denied this call. */
  deniedBy?: ResolvedPolicy;
  #isInHandler = false;
  #flights: Flight[] = [];
  #settlement: Settlement | undefined;
  #isWatched = false;
  #enteredAtMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #error: unknown;
  /** The end that `isFailure` was asked about last, and what each policy's said. */
  #judgedEnd: CallEnd | undefined;
  #predicateResults: ReadonlyMap<ResolvedPolicy, boolean | undefined> | undefined;

  constructor(
    readonly context: ExecutionContext,
    readonly call: LimitedCall,
    readonly plan: Plan,
    readonly app: VisitedApp,
  ) {
    this.isHttp = context.getType() === 'http';
  }

  /**
   * Called if a middleware or another handler has passed the request on. An app asks `default` once a request. The app may be mounted
   * in another one, which has limits of its own.
   */
  follows(earlier: CallVisit | undefined): void {
    if (earlier?.app !== this.app) return;
    if (earlier.passed.has('default')) this.passed.add('default');
    this.isDefaultAsked = earlier.passed.has('default') && earlier.passed.has('after');
    if (earlier.decided) this.decided = [...earlier.decided];
  }

  isOf(handler: unknown, type: unknown): boolean {
    return this.context.getHandler() === handler && this.context.getClass() === type;
  }

  /** Whether the client has left already. Outside of HTTP that is not known. */
  get isGone(): boolean {
    return this.isHttp && isGone(this.call);
  }

  /** Whether limits wait for the end of this call. */
  get isInFlight(): boolean {
    return this.#flights.some(({ untilHandler }) => !untilHandler);
  }

  /** Called before limits are asked that count the call by how it ends, so that no end is missed meanwhile. */
  awaitsEnd(checks: readonly PolicyCheck[]): void {
    const { response } = this.call;
    // One response of GraphQL answers several calls, and does not show how each of them ended.
    if (!this.isHttp || !response || this.#isWatched) return;
    this.#isWatched = true;
    watchResponse(response, this, checks);
    if (this.isGone) this.connectionClosed();
  }

  /** Called when limits have let the call in that count it by how it ends. */
  entered(checks: readonly PolicyCheck[], counted: CountedCall): void {
    for (const untilHandler of [false, true]) {
      const ofKind = checks.filter(({ policy }) => (policy.judgedBy === 'guards') === untilHandler);
      if (ofKind.length > 0) this.#enter({ checks: ofKind, counted, untilHandler });
    }
  }

  #enter(flight: Flight): void {
    if (this.#settlement) {
      this.#settleFlight(flight, this.#settlement).catch(() => {});
      return;
    }
    this.#flights.push(flight);
    if (this.#timer) return;
    this.#enteredAtMs = performance.now();
    this.#renewLater();
  }

  /** Called when all guards have let the call pass. For limits that guards judge by, it has succeeded. */
  guardsPassed(): void {
    const judged = this.#flights.filter((flight) => flight.untilHandler);
    this.#flights = this.#flights.filter((flight) => !flight.untilHandler);
    for (const flight of judged) this.#settleFlight(flight, LET_PASS).catch(() => {});
  }

  denied(policy: ResolvedPolicy, decision: DeniedDecision): TooManyAttemptsError {
    this.deniedBy = policy;
    return refusalBy(policy, decision);
  }

  /** Called when a limit of ours has refused the call. Those that have let it in must not count that as a failure. */
  refused(): void {
    this.#settleInBackground(TAKEN_BACK);
  }

  /** Called when the guards are over, and interceptors and pipes of the handler begin. */
  handlerReached(): void {
    this.#isInHandler = true;
  }

  /** Called when the handler has returned. Its answer has not left yet, unless the handler writes it itself. */
  async handlerReturned(value: unknown): Promise<void> {
    const end = endOf(this, value);
    if (!end) return;
    // GraphQL treats an error that is returned as one that was thrown.
    if (!this.isHttp && value instanceof Error) return this.threw(value);
    await this.#judge(undefined, end);
  }

  /** Called when the handler, or what runs around it, has thrown. Over HTTP a filter may still change the status. */
  async threw(error: unknown): Promise<void> {
    this.#error = error;
    const { handled } = this;
    const statusCode = statusOfError(error) ?? 500;
    await this.#judge(error, { statusCode, location: undefined, value: undefined, handled });
  }

  /** Called when the headers of the answer were written. If this sets a block, it denies the next call. */
  headersWritten(statusCode: number): void {
    if (this.#settlement) return;
    const location = this.call.response && locationOf(rawOf(this.call.response));
    // A filter, or an interceptor farther out, may have changed the response since `isFailure` was asked.
    const isJudged = this.#judgedEnd?.statusCode === statusCode && this.#judgedEnd.location === location;
    const { handled } = this;
    const end = { statusCode, location, handled, value: this.#judgedEnd?.value };
    if (!isJudged) this.#askPredicates(this.#error, end);
    this.#settleInBackground(this.#by(statusCode));
  }

  /** Called when the connection has closed before headers were written. */
  connectionClosed(): void {
    this.#settleInBackground(HUNG_UP);
  }

  /** Called when nothing waits for the result any more. Over HTTP the response reports the end of the call. */
  unsubscribed(): void {
    if (!this.isHttp) this.connectionClosed();
  }

  async #judge(error: unknown, end: CallEnd): Promise<void> {
    if (this.#settlement) return;
    if (this.isGone) return this.#settle(HUNG_UP);
    if (!this.#predicateResults) this.#askPredicates(error, end);
    const settlement = this.#by(end.statusCode);
    // An error of the server stays as it is. A filter may still turn it into a failure of the client, so it is settled by
    // the status that leaves.
    const isShown =
      settlement.blocks &&
      this.#flights.some(({ checks }) =>
        checks.some(({ policy }) => policy.count === 'failure' && settlement.outcomeOf(policy) === 'failure'),
      );
    if (!this.isHttp || isShown) await this.#settle(settlement);
  }

  #askPredicates(error: unknown, end: CallEnd): void {
    this.#judgedEnd = end;
    this.#predicateResults = new Map(
      this.#flights.flatMap(({ checks }) =>
        checks.map(({ policy }) => [policy, predicateResult(policy, error, end)]),
      ),
    );
  }

  #by(status: number): Settlement {
    return {
      outcomeOf: (policy) => {
        if (this.#settlement && hasNoVerdict(policy, status)) this.app.hasNoVerdict(this, policy, status);
        return outcomeOf(policy, status, this.#predicateResults?.get(policy), this.#error !== undefined);
      },
      blocks: status < 500,
    };
  }

  #settleInBackground(settlement: Settlement): void {
    this.#settle(settlement).catch(() => {});
  }

  async #settle(settlement: Settlement): Promise<void> {
    if (this.#settlement) return;
    this.#settlement = settlement;
    clearTimeout(this.#timer);
    await Promise.all(this.#flights.splice(0).map((flight) => this.#settleFlight(flight, settlement)));
  }

  /** A limit that counts this outcome counts the call. Any other takes it back. */
  async #settleFlight(
    { checks, counted }: Flight,
    { outcomeOf: outcome, blocks }: Settlement,
  ): Promise<void> {
    const { decisions } = this.app.limiter;
    const outcomes = new Map(checks.map(({ policy }) => [policy, outcome(policy)]));
    const confirm = async (counting: Outcome): Promise<CallDecision | undefined> => {
      const confirmed = checks.filter(
        ({ policy }) => policy.count === counting && outcomes.get(policy) === counting,
      );
      return confirmed.length > 0 ? decisions.confirm(confirmed, counted, blocks) : undefined;
    };
    const failed = confirm('failure');
    const rest: Promise<unknown>[] = checks
      .filter(({ policy }) => outcomes.get(policy) !== policy.count)
      .map((check) => decisions.withdraw(check, counted, outcomes.get(check.policy) === 'success'));
    try {
      const [decided] = await Promise.all([failed, Promise.allSettled([...rest, confirm('success')])]);
      if (decided) this.app.counted(this, decided);
      // A success is never denied here, as it has happened already.
      if (decided?.decision.allowed === false) throw this.denied(decided.by.policy, decided.decision);
    } catch (error) {
      // What the client gets after an error of the server is that error.
      if (blocks) await this.app.refuse(this, error);
    }
  }

  #renewLater(): void {
    this.#timer = setTimeout(() => this.#renew(), RENEW_MS).unref();
  }

  #renew(): void {
    // Outside of HTTP nothing else reports that a later guard has refused the call.
    if (!this.isHttp && !this.#isInHandler) return this.connectionClosed();
    if (performance.now() - this.#enteredAtMs >= this.app.maxFlightMs) return;
    for (const { checks, counted } of this.#flights) this.app.limiter.decisions.renew(checks, counted);
    this.#renewLater();
  }
}
