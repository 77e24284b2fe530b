import type { ExecutionContext } from '@nestjs/common';
import type { CallInFlight } from '../call-in-flight.js';
import type { ResolvedPolicy } from '../limit.policy.js';
import { graphqlCall } from './contexts/graphql.js';
import { httpCall } from './contexts/http.js';
import { messageCall } from './contexts/rpc.js';
import { socketCall } from './contexts/ws.js';
import type { LimitedCall } from './limited-call.js';

/** When limits are asked: by the global guard, before the other guards of a route, or after them. */
export type Stage = 'default' | 'before' | 'after';

/** The limits of one route, by the stage at which they are asked. */
export interface Plan {
  /** The limits of the policy `default` that are asked by the global guard, with their watching policies. */
  readonly default: readonly ResolvedPolicy[];
  /** The limits of the route that are asked before its guards, with their watching policies. */
  readonly before: readonly ResolvedPolicy[];
  /** The limits of the route that are asked after all guards. */
  readonly after: readonly ResolvedPolicy[];
  /** The limits of the policy `default` that are asked after all guards, if the global guard is bound. */
  readonly defaultAfter: readonly ResolvedPolicy[];
  /**
   * Policies that the limiter has added. Each stands in for a policy that counts failures and is asked after the guards: it
   * counts, by address, the calls that a guard refuses.
   */
  readonly watching: ReadonlySet<ResolvedPolicy>;
}

/** One call on its way through guards and handler. It passes each stage once, however often our guards are bound. */
export interface Visit {
  /** That of the guards. */
  readonly context: ExecutionContext;
  readonly handler: ReturnType<ExecutionContext['getHandler']>;
  readonly type: object;
  readonly call: LimitedCall;
  readonly plan: Plan;
  readonly passed: Set<Stage>;
  /** The policies that count this call by how it ends. */
  readonly inFlight: CallInFlight[];
  /** The policies that count this call only if a guard refuses it. */
  readonly watching: CallInFlight[];
  /** The limiter of the app that the call belongs to. Several apps of a process may share the methods they call. */
  readonly limiter: { guardsPassed(visit: Visit): Promise<boolean> | true };
  readonly isHttp: boolean;
  /** Whether the handler was called. */
  handled: boolean;
  exempt?: boolean | Promise<boolean>;
}

const READERS: Readonly<Record<string, (context: ExecutionContext) => LimitedCall>> = {
  http: httpCall,
  graphql: graphqlCall,
  ws: socketCall,
  rpc: messageCall,
};

export const limitedCall = (context: ExecutionContext): LimitedCall | undefined =>
  READERS[context.getType<string>()]?.(context);

/**
 * Returns an object that belongs to this call alone, and is the same in its guards and its interceptor. Over HTTP that is the
 * request. Elsewhere several fields or messages share a request, so it is the list of the handler's arguments.
 */
export const callObject = (context: ExecutionContext): object =>
  context.getType() === 'http' ? context.switchToHttp().getRequest<object>() : context.getArgs();

/** The visit is a property of the call. A WeakMap of all requests was measured to double the time of garbage collection. */
const VISIT = Symbol.for('syncguard:visit');

interface Visited {
  [VISIT]?: Visit;
}

/** Returns the visit that a guard of ours has left on a request, whatever handler it was for. */
export const visitOn = (place: unknown): Visit | undefined => (place as Visited | null | undefined)?.[VISIT];

export const leaveVisit = (place: object, visit: Visit): Visit => ((place as Visited)[VISIT] = visit);

/** Returns the visit that a guard of ours has left on this call, for this handler. */
export function visitOf(context: ExecutionContext): Visit | undefined {
  const visit = visitOn(callObject(context));
  return visit?.handler === context.getHandler() && visit.type === context.getClass() ? visit : undefined;
}
