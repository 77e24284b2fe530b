import type { ExecutionContext } from '@nestjs/common';
import { GATEWAY_OPTIONS, MESSAGE } from '../../../transport/nest-metadata.js';
import { type LimitedCall, patternText } from '../limited-call.js';

/** A client of socket.io (`handshake`) or of ws (`_socket`). */
interface Socket {
  readonly handshake?: {
    readonly address?: string;
    readonly headers?: Readonly<Record<string, unknown>>;
    readonly query?: unknown;
  };
  readonly request?: { readonly session?: unknown; readonly user?: unknown };
  readonly data?: { readonly user?: unknown };
  readonly user?: unknown;
  readonly _socket?: { readonly remoteAddress?: string } | null;
}

/** Reads a message of a gateway. */
export function socketCall(context: ExecutionContext): LimitedCall {
  const client = context.switchToWs().getClient<Socket>();
  const { handshake } = client;
  const remoteAddress = handshake?.address ?? client._socket?.remoteAddress;
  const gateway = (Reflect.getMetadata(GATEWAY_OPTIONS, context.getClass()) ?? {}) as {
    readonly namespace?: string | RegExp;
    readonly path?: string;
  };
  const request = {
    ip: remoteAddress,
    socket: remoteAddress === undefined ? undefined : { remoteAddress },
    headers: handshake?.headers ?? {},
    query: handshake?.query,
    session: client.request?.session,
    body: context.switchToWs().getData<unknown>(),
    get user(): unknown {
      return client.user ?? client.data?.user ?? client.request?.user;
    },
  };
  const message = patternText(Reflect.getMetadata(MESSAGE, context.getHandler()));
  const namespace = gateway.namespace ?? gateway.path;
  return {
    request,
    route: namespace === undefined ? `WS ${message}` : `WS ${String(namespace)} ${message}`,
  };
}
