import { errorMessage, GraphQLRefusal, httpException, type Refusal } from './refusal.js';

/** Returns the exception that carries a refusal to the client, of the class that Nest expects in a context of this type. */
export async function exceptionFor(type: string, refusal: Refusal, cause: Error): Promise<Error> {
  switch (type) {
    case 'graphql':
      return new GraphQLRefusal(refusal, cause);
    case 'ws':
    case 'rpc': {
      const Exception = await exceptionOf(type);
      return Exception ? Object.assign(new Exception(errorMessage(refusal)), { cause }) : cause;
    }
    default:
      return httpException(refusal, cause);
  }
}

type ExceptionClass = new (error: object) => Error;

// The packages of WebSockets and microservices are optional. They are imported nowhere else, and here only when a call
// that came through them is refused. Inside of a `try`, bundlers accept that a package is missing.

async function exceptionOf(type: 'ws' | 'rpc'): Promise<ExceptionClass | undefined> {
  try {
    if (type === 'ws') return (await import('@nestjs/websockets')).WsException;
    return (await import('@nestjs/microservices')).RpcException;
  } catch {
    return undefined;
  }
}
