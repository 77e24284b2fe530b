import { brandedAs, type SyncGuardError } from '../core/errors.js';
import { errorMessage, GraphQLRefusal, httpException, type Refusal } from './refusal.js';

/**
 * Returns the exception that carries a refusal to the client, of the class that Nest expects in a context of this type. It is
 * an error of ours as well, for filters of the app.
 *
 * @param body - what the client gets in place of the refusal. In GraphQL it is in the place of its `extensions`.
 */
export async function exceptionFor(
  type: string,
  refusal: Refusal,
  cause: SyncGuardError,
  body?: object,
): Promise<Error> {
  const ours = (exception: Error): Error => brandedAs(exception, cause);
  if (type === 'graphql') return ours(new GraphQLRefusal(refusal, cause, body));
  if (type !== 'ws' && type !== 'rpc') return ours(httpException(refusal, cause, body));
  // These packages are optional. They are imported nowhere else, and here only when a call that came through them is
  // refused. Inside of a `try`, bundlers accept that a package is missing.
  try {
    const Exception =
      type === 'ws'
        ? (await import('@nestjs/websockets')).WsException
        : (await import('@nestjs/microservices')).RpcException;
    return ours(Object.assign(new Exception(body ?? errorMessage(refusal)), { cause }));
  } catch {
    return cause;
  }
}
