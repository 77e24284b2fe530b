import { Logger } from '@nestjs/common';
import type { ResolvedPolicy } from '../limit.policy.js';
import type { CallEnd } from '../limit.types.js';

const logger = new Logger('SyncGuard');

/** How a call ended, as one policy sees it. A 404 is `neither` for a policy that counts failures. */
export type Outcome = 'failure' | 'success' | 'neither';

/** What `isFailure` of a policy says about the end of a call. Undefined leaves it to the status. */
export function predicateResult(
  { isFailure, count, name }: ResolvedPolicy,
  error: unknown,
  end: CallEnd,
): boolean | undefined {
  if (!isFailure) return undefined;
  try {
    const result: unknown = isFailure(error, end);
    // A guard refused the call, and its error is not known here. So a `false` must not hide a 401 or 403.
    if (result === false && error === undefined && !end.handled) return undefined;
    if (result === undefined || typeof result === 'boolean') return result;
    throw new TypeError(
      `It returned a value of type ${typeof result}. It must return true, false or undefined.`,
    );
  } catch (fault) {
    logger.error(
      `RATE_LIMIT_IS_FAILURE_THREW: The function \`isFailure\` of the policy ${name} failed, so the call counts. Correct the function. ${String(fault)}`,
      fault instanceof Error ? fault.stack : undefined,
    );
    return count === 'failure';
  }
}

/**
 * @param isFailure - what the policy's `isFailure` has said
 * @param threw - whether the handler, or something around it, threw
 */
export function outcomeOf(
  { count }: ResolvedPolicy,
  status: number,
  isFailure: boolean | undefined,
  threw: boolean,
): Outcome {
  if (count === 'success') return (isFailure ?? (threw || status >= 400)) ? 'failure' : 'success';
  if (isFailure ?? (status === 401 || status === 403)) return 'failure';
  return !threw && status >= 200 && status < 300 ? 'success' : 'neither';
}

/**
 * Returns whether a policy that counts failures cannot know what this status says: a redirect, a timeout or an error of the
 * server may be the answer to a wrong guess. 304 is no redirect: it means that nothing has changed.
 */
export const hasNoVerdict = ({ count, isFailure }: ResolvedPolicy, status: number): boolean =>
  count === 'failure' &&
  !isFailure &&
  ((status >= 300 && status < 400 && status !== 304) || status === 408 || status >= 500);

/** The statuses that GraphQL's error codes stand for. */
const STATUS_BY_GRAPHQL_CODE: Readonly<Record<string, number>> = {
  UNAUTHENTICATED: 401,
  FORBIDDEN: 403,
  BAD_USER_INPUT: 400,
};

/** Returns the HTTP status that an error names: an exception of Nest in any context, or an error of another library. */
export function statusOfError(error: unknown): number | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { getStatus, getError, extensions } = error as {
    getStatus?: () => unknown;
    getError?: () => unknown;
    extensions?: { code?: unknown };
  };
  if (typeof getStatus === 'function') return asStatus(getStatus.call(error));
  // WsException and RpcException have no status of their own. They hold an object or a text of the app.
  if (typeof getError === 'function') return statusNamedBy(getError.call(error));
  return statusNamedBy(error) ?? STATUS_BY_GRAPHQL_CODE[String(extensions?.code)];
}

function statusNamedBy(value: unknown): number | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const { status, statusCode } = value as Record<string, unknown>;
  return asStatus(statusCode) ?? asStatus(status);
}

const asStatus = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);
