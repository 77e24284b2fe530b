import type { ExecutionContext } from '@nestjs/common';
import { LimitError } from '../limit.errors.js';
import { identityIn } from '../limit.identity.js';
import { describeKeyBy, isByAddress } from '../limit.key-by.js';
import { costOf, withLimit, withWindow } from '../limit.validate.js';
import { nameWithoutShadow, type PolicyCheck, type ResolvedPolicy } from '../limit.policy.js';
import type { FromContext } from '../policy.types.js';
import type { KeyResolver } from './key-resolver.js';
import type { CallVisit, Plan, Stage } from './call-visit.js';

/** Makes the checks of a call whose key, limit or cost is not known at once, or that counts by how it ends. */
export class CallChecks {
  constructor(
    private readonly keys: KeyResolver,
    private readonly warnOnce: (message: string) => undefined,
    private readonly shadowFailed: (line: string, stack?: string) => void,
  ) {}

  async of(policies: readonly ResolvedPolicy[], visit: CallVisit, stage: Stage): Promise<PolicyCheck[]> {
    const { context, plan } = visit;
    const counted = policies.filter(
      (policy) =>
        policy.count === 'attempt' || !isOfDefault(plan, policy, stage) || this.#knowsHowCallsEnd(context),
    );
    const checkIn = async (policy: ResolvedPolicy): Promise<PolicyCheck | undefined> => {
      const key = await this.keys.keyFor(policy, visit);
      if (key === undefined)
        return policy.isWatching || visit.isGone ? undefined : this.#passWithoutKey(policy, context, stage);
      return this.#checkOf(policy, key, context);
    };
    const checks = counted.map((policy) =>
      policy.shadow
        ? checkIn(policy).catch((fault: unknown) => this.#notAsked(policy, fault))
        : checkIn(policy),
    );
    return (await Promise.all(checks)).filter((check) => check !== undefined);
  }

  /** Nobody is refused for a policy that is tried, nor for a fault of its functions. */
  #notAsked({ name }: ResolvedPolicy, fault: unknown): undefined {
    const line = `RATE_LIMIT_SHADOW: The policy ${nameWithoutShadow(name)}, which has \`shadow: true\`, could not be asked.`;
    this.shadowFailed(line, (fault as Error | undefined)?.stack);
  }

  async #checkOf(policy: ResolvedPolicy, key: string, context: ExecutionContext): Promise<PolicyCheck> {
    if (!isDynamic(policy))
      return { policy, identity: identityIn(policy.name, key), cost: policy.cost as number };
    const from = <T>(value: T | FromContext<T>): T | Promise<T> =>
      typeof value === 'function' ? this.keys.resolver(value as FromContext<T>)(context) : value;
    let current = policy;
    if (policy.dynamicWindow) current = withWindow(current, await from<unknown>(policy.dynamicWindow));
    if (policy.dynamicLimit)
      current = withLimit(current, await from<unknown>(policy.dynamicLimit), this.warnOnce);
    const cost = costOf(current, await from<unknown>(policy.cost));
    // The window is part of the name, so that calls of a day are not counted in an hour.
    const name = policy.dynamicWindow ? `${policy.name};w=${current.rules.tiers[0].windowMs}` : policy.name;
    return { policy: current, identity: identityIn(name, key), cost };
  }

  /**
   * Lets a call without a key pass, with a warning, if the policy is `default`: that one was written for HTTP. Any other
   * policy stands on the handler of the call, so it refuses the call.
   */
  #passWithoutKey({ name, keyBy }: ResolvedPolicy, context: ExecutionContext, stage: Stage): undefined {
    if (stage === 'default' && isByAddress(keyBy))
      return this.warnOnce(
        `RATE_LIMIT_NO_KEY: Calls of type '${context.getType<string>()}' have no address, so the policy \`default\` does not limit them. Give it a \`keyBy\` that finds a key in them.`,
      );
    throw new LimitError({
      code: 'InvalidArgument',
      message: 'The call does not have the values that identify its caller.',
      hint: `The policy ${name} counts by ${describeKeyBy(keyBy)}. The call has no such value, and no address. Send the value, or change the \`keyBy\` of the policy.`,
    });
  }

  /** Returns false, with a warning, outside of HTTP: there the global guard has no interceptor that reports how calls end. */
  #knowsHowCallsEnd(context: ExecutionContext): boolean {
    const type = context.getType<string>();
    if (type === 'http') return true;
    this.warnOnce(
      `RATE_LIMIT_NO_OUTCOME: The policy \`default\` counts calls by how they end. The global guard does not learn that for calls of type '${type}', so it does not limit them. Put @RateLimit on their handlers.`,
    );
    return false;
  }
}

/** Functions of the app decide about each call under such a policy. */
const isDynamic = ({ dynamicLimit, dynamicWindow, cost }: ResolvedPolicy): boolean =>
  dynamicLimit !== undefined || dynamicWindow !== undefined || typeof cost === 'function';

const isOfDefault = ({ defaultAfter }: Plan, policy: ResolvedPolicy, stage: Stage): boolean =>
  stage === 'default' || (stage === 'after' && defaultAfter.includes(policy));
