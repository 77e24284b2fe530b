import { errorMessage, GraphQLRefusal, httpException, type Refusal } from '../refusal.js';

/** The exception that carries a refusal to the client, of the kind that Nest expects of a context. */
export async function exceptionFor(type: string, refusal: Refusal, cause: Error): Promise<Error> {
  switch (type) {
    case 'graphql':
      return new GraphQLRefusal(refusal, cause);
    case 'ws':
    case 'rpc': {
      const Exception = await (type === 'ws' ? wsException() : rpcException());
      return Exception ? Object.assign(new Exception(errorMessage(refusal)), { cause }) : cause;
    }
    default:
      return httpException(refusal, cause);
  }
}

type ExceptionClass = new (error: object) => Error;

// The packages of WebSockets and microservices are optional. They are imported here alone, when a call that came by
// them is refused; the `try` also tells bundlers that an app may not have them.

async function wsException(): Promise<ExceptionClass | undefined> {
  try {
    return (await import('@nestjs/websockets')).WsException;
  } catch {
    return undefined;
  }
}

async function rpcException(): Promise<ExceptionClass | undefined> {
  try {
    return (await import('@nestjs/microservices')).RpcException;
  } catch {
    return undefined;
  }
}
