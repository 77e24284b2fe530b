import type { ExecutionContext } from '@nestjs/common';
import type { CallInFlight } from './call-in-flight.js';
import { identityOfCall, type LimitedCall } from './limited-call.js';
import type { Plan, Stage } from './plan.js';

/** One call on its way through guards and handler: each stage is gone through once, however often it is bound. */
export interface Visit {
  readonly handler: unknown;
  readonly type: unknown;
  readonly call: LimitedCall;
  readonly plan: Plan;
  readonly passed: Set<Stage>;
  /** The limits that wait to hear how the call ends. */
  readonly inFlight: CallInFlight[];
  /** Those that only watch the guards. */
  readonly watching: CallInFlight[];
  /** Of the app that the call belongs to: what is bound to a method is shared by all apps of the process. */
  readonly steward: Steward;
  readonly isHttp: boolean;
  /** Whether the method itself was called. */
  handled: boolean;
  exempt?: Promise<boolean>;
}

/** What those that are bound to methods ask of the app's limiter. */
export interface Steward {
  /** All guards have let the call pass. */
  guardsPassed(context: ExecutionContext, visit: Visit): Promise<boolean> | true;
  /** The handler returned its answer. Rejects with what is to be answered in its place. */
  answered(visit: Visit, calls: readonly CallInFlight[], value: unknown): Promise<void>;
  /** The handler threw. Rejects with what is to be answered in place of that error, if anything. */
  failedWith(visit: Visit, calls: readonly CallInFlight[], error: unknown): Promise<void>;
}

/** On the call itself: a WeakMap of all requests was measured to double the work of the garbage collector. */
const VISIT = Symbol.for('syncguard:visit');

interface Visited {
  [VISIT]?: Visit;
}

/** What a guard of ours has left on the request, whatever handler it was for. */
export const visitOn = (place: unknown): Visit | undefined => (place as Visited | null | undefined)?.[VISIT];

export const leaveVisit = (place: object, visit: Visit): Visit => ((place as Visited)[VISIT] = visit);

/** What a guard of ours has left on this call. */
export function visitOf(context: ExecutionContext): Visit | undefined {
  const visit = visitOn(identityOfCall(context));
  return visit?.handler === context.getHandler() && visit.type === context.getClass() ? visit : undefined;
}
