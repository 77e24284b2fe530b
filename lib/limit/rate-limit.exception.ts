import { errorMessage, GraphQLRefusal, httpException, type Refusal } from '../refusal.js';

/**
 * The exception that carries a refusal to the client, of the kind that Nest expects of a context. The packages of
 * WebSockets and microservices are optional: they are imported here alone, when a call that came by them is refused.
 */
export async function exceptionFor(type: string, refusal: Refusal, cause: Error): Promise<Error> {
  switch (type) {
    case 'graphql':
      return new GraphQLRefusal(refusal, cause);
    case 'ws': {
      const { WsException } = await import('@nestjs/websockets');
      return withCause(new WsException(errorMessage(refusal)), cause);
    }
    case 'rpc': {
      const { RpcException } = await import('@nestjs/microservices');
      return withCause(new RpcException(errorMessage(refusal)), cause);
    }
    default:
      return httpException(refusal, cause);
  }
}

const withCause = (exception: Error, cause: Error): Error => Object.assign(exception, { cause });
