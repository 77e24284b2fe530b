import { brandedAs, type SyncGuardError } from '../core/errors.js';
import { errorMessage, GraphQLRefusal, httpException, type Refusal } from './refusal.js';

/**
 * Returns the exception that carries a refusal to the client, of the class that Nest expects in a context of this type. It is
 * an error of ours as well, for filters of the app.
 */
export const exceptionFor = async (type: string, refusal: Refusal, cause: SyncGuardError): Promise<Error> =>
  brandedAs(await plainExceptionFor(type, refusal, cause), cause);

async function plainExceptionFor(type: string, refusal: Refusal, cause: SyncGuardError): Promise<Error> {
  switch (type) {
    case 'graphql':
      return new GraphQLRefusal(refusal, cause);
    case 'ws':
    case 'rpc':
      // These packages are optional. They are imported nowhere else, and here only when a call that came through them is
      // refused. Inside of a `try`, bundlers accept that a package is missing.
      try {
        const Exception =
          type === 'ws'
            ? (await import('@nestjs/websockets')).WsException
            : (await import('@nestjs/microservices')).RpcException;
        return Object.assign(new Exception(errorMessage(refusal)), { cause });
      } catch {
        return cause;
      }
    default:
      return httpException(refusal, cause);
  }
}
