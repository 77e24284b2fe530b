import { createParamDecorator, type ExecutionContext } from '@nestjs/common';
import { SyncGuardConfigError } from '../../core/errors.js';
import type { AllowedDecision } from '../limit.types.js';
import type { CallVisit } from './call-visit.js';
import { visitOf, visitOn } from './visit.js';

/** What a limit has decided about a call that it lets in, and which limit that is. */
export type LimitedDecision = AllowedDecision & {
  /** The name of the policy. */
  readonly policy: string;
  /** How many calls the policy lets in, by its short window. */
  readonly limit: number;
};

/**
 * Passes the handler what the limits have decided about this call: of several limits, the decision that leaves least. It is
 * undefined if no limit has counted the call, as with `skipIf`, or a cost of 0.
 *
 * It works over HTTP and in GraphQL. In a handler of messages it throws, as Nest does not tell parameters which message is handled.
 *
 * @example
 * \@Post('code')
 * \@RateLimit('otp')
 * enter(@Limited() limited?: LimitedDecision) {
 *   return { triesLeft: limited?.remaining };
 * }
 */
export const Limited: () => ParameterDecorator = createParamDecorator(
  (_: unknown, context: ExecutionContext) => {
    if (!['http', 'graphql'].includes(context.getType<string>()))
      throw new SyncGuardConfigError(
        `@Limited() is on a parameter of ${context.getClass().name}.${context.getHandler().name}, which handles messages.`,
        { hint: 'It works over HTTP and in GraphQL. Ask `AbuseLimiterService.peek` in this handler.' },
      );
    return tightest(visitOf(context));
  },
);

/**
 * Returns the same for a request of Express or Fastify, for interceptors, filters and middleware.
 *
 * @param request - the request of an HTTP call that our guards have let in
 * @example const left = limitedOn(context.switchToHttp().getRequest())?.remaining;
 */
export const limitedOn = (request: object): LimitedDecision | undefined => tightest(visitOn(request));

function tightest(visit: CallVisit | undefined): LimitedDecision | undefined {
  const all = (visit?.decided ?? []).flatMap(({ checks, decisions }) =>
    checks.flatMap(({ policy, cost }, i): LimitedDecision[] => {
      const decision = decisions[i];
      if (!decision?.allowed || cost === 0 || policy.shadow || policy.isWatching) return [];
      return [{ ...decision, policy: policy.name, limit: policy.rules.tiers[0].threshold - 1 }];
    }),
  );
  const [first, ...others] = all;
  return first && others.reduce((a, b) => (b.remaining < a.remaining ? b : a), first);
}
