import { setMaxListeners } from 'node:events';
import { createParamDecorator, type ExecutionContext } from '@nestjs/common';
import { offAbort, onAbort } from '../core/abort-listeners.js';
import { read } from '../core/foreign-values.js';
import { SyncGuardConfigError } from '../core/errors.js';

/** Metadata: the index of the parameter that `@HangUp()` marks. */
const PARAMETER = Symbol.for('syncguard:hang-up-parameter');

/**
 * Marks the parameter of a handler that receives an AbortSignal, which aborts when the caller is gone: its HTTP
 * connection, or its stream of HTTP/2, closes before the answer was sent, or its socket disconnects. Anywhere else, such as
 * in a message handler or a cron job, the signal never aborts.
 *
 * Under `@WithLock()` a caller that is gone waits no longer for the lock. Under `@WithBudget()` it pays as one that hangs
 * up. Pass the signal on to whatever the method waits for.
 *
 * @example
 * \@Get('report/:id')
 * \@WithLock('report:{0}')
 * async report(\@Param('id') id: string, \@HangUp() gone: AbortSignal) {
 *   return this.llm.summary(id, { signal: gone });
 * }
 */
export const HangUp = (): ParameterDecorator => (target, propertyKey, index) => {
  if (propertyKey === undefined)
    throw new SyncGuardConfigError('@HangUp() cannot be used on a parameter of a constructor.', {
      hint: 'Put it on a parameter of a handler.',
    });
  Reflect.defineMetadata(PARAMETER, index, target, propertyKey);
  fromContext()(target, propertyKey, index);
};

/** Returns the index of the parameter that `@HangUp()` marks. */
export const hangUpParameter = (target: object, propertyKey: string | symbol): number | undefined =>
  Reflect.getOwnMetadata(PARAMETER, target, propertyKey) as number | undefined;

const fromContext = createParamDecorator((_: unknown, context: ExecutionContext) => signalOf(context));

/** What is read of a response of Node.js, or of its twin of HTTP/2. */
interface RawResponse extends Closing {
  readonly raw?: RawResponse;
  readonly writableEnded?: boolean;
  readonly req?: { readonly socket?: Closing };
  readonly stream?: Closing;
}

/** A connection: a socket, a stream of HTTP/2, or the client of a gateway. */
interface Closing {
  readonly destroyed?: boolean;
  /** Of a client of socket.io. */
  readonly disconnected?: boolean;
  /** Of a client of ws, as a number: above 1 it closes or has closed. */
  readonly readyState?: unknown;
  once?(event: string, listener: () => void): unknown;
}

/** Returns the signal that aborts when the caller is gone. */
export function signalOf(context: ExecutionContext): AbortSignal {
  switch (context.getType<string>()) {
    case 'http':
      return ofResponse(context.switchToHttp().getResponse<RawResponse>());
    case 'graphql':
      return ofResponse(graphqlResponse(context.getArgByIndex(2)));
    case 'ws':
      return closed(context.switchToWs().getClient<Closing>());
    default:
      return neverAborts();
  }
}

/** Drivers and apps put the response into the GraphQL context in several ways. */
const graphqlResponse = (shared: unknown): RawResponse | undefined =>
  [
    read(shared, 'res'),
    read(shared, 'reply'),
    read(read(shared, 'req') ?? read(shared, 'request'), 'res'),
  ].find(Boolean) as RawResponse | undefined;

/** A signal of its own for each call, so that what listens to it goes with the call. */
const neverAborts = (): AbortSignal => new AbortController().signal;

const signals = new WeakMap<object, AbortSignal>();

/**
 * HTTP/2 has a stream for each response, HTTP/1 a socket for each request: a response that waits behind another one on its
 * connection has no socket, and is not told when the connection closes.
 */
function ofResponse(response: RawResponse | undefined): AbortSignal {
  const raw = response?.raw ?? response;
  if (typeof raw?.once !== 'function') return neverAborts();
  const known = signals.get(raw);
  if (known) return known;
  const controller = newController();
  signals.set(raw, controller.signal);
  const connection = closed(raw.stream ?? raw.req?.socket);
  const listener = {
    handleEvent: () => {
      offAbort(connection, listener);
      if (!raw.writableEnded) controller.abort(hungUp());
    },
  };
  raw.once('close', listener.handleEvent);
  if (connection.aborted) listener.handleEvent();
  else onAbort(connection, listener);
  return controller.signal;
}

/** Returns the signal that aborts when a connection has closed. All calls on it share one. */
function closed(connection: Closing | undefined): AbortSignal {
  if (typeof connection?.once !== 'function') return neverAborts();
  const known = signals.get(connection);
  if (known) return known;
  const controller = newController();
  signals.set(connection, controller.signal);
  const end = (): void => controller.abort(hungUp());
  const { destroyed, disconnected, readyState } = connection;
  if (destroyed || disconnected || (typeof readyState === 'number' && readyState > 1)) end();
  else connection.once('handshake' in connection ? 'disconnect' : 'close', end);
  return controller.signal;
}

function newController(): AbortController {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal); // A handler may pass the signal to any number of calls.
  return controller;
}

const reasons = new WeakSet<object>();

function hungUp(): DOMException {
  const reason = new DOMException('The caller has hung up.', 'AbortError');
  reasons.add(reason);
  return reason;
}

/** Returns whether an error came from a caller that has hung up. */
export const isHungUp = ({ cause }: Error): boolean => reasons.has(Object(cause) as object);
