import type { INestApplication, ModuleMetadata } from '@nestjs/common';
import { IoAdapter } from '@nestjs/platform-socket.io';
import { WsAdapter } from '@nestjs/platform-ws';
import { once } from 'node:events';
import { io } from 'socket.io-client';
import { WebSocket } from 'ws';
import { type HttpApp, listen } from '../../support/adapters.js';
import type { Reply } from './reply.js';

export type SocketKind = 'socket.io' | 'ws';

/** A connection to the app's gateways. */
export interface SocketClient {
  /** All that has come so far, in order: the items of a stream, for instance. */
  readonly received: readonly Reply[];
  /**
   * Sends a message and waits for what comes next. One message at a time: a socket does not say which one an
   * exception is about. On ws an answer is the whole message that was sent back.
   */
  send(event: string, data?: unknown): Promise<Reply>;
  close(): void;
}

export interface Sockets {
  connect(): Promise<SocketClient>;
  /** Sends a message on a connection of its own. */
  send(event: string, data?: unknown): Promise<Reply>;
  /** Closes all connections. */
  close(): void;
}

export interface SocketApp extends HttpApp, Omit<Sockets, 'close'> {
  close(): Promise<void>;
}

/**
 * An app with gateways, on one of Nest's two WebSocket adapters.
 *
 * @example
 * const app = await socketApp('ws', { imports: [SyncGuardModule.forRoot()], providers: [OrdersGateway] });
 * expect(await app.send('pay', '7')).toEqual({ answer: 'paid' });
 */
export async function socketApp(kind: SocketKind, metadata: ModuleMetadata): Promise<SocketApp> {
  const { app, url } = await listen('express', metadata, undefined, (created) => speak(created, kind));
  const sockets = socketsTo(url, kind);
  return {
    ...sockets,
    app,
    url,
    async close() {
      sockets.close();
      await app.close();
    },
  };
}

/** Has an app's gateways speak the one or the other protocol. */
export const speak = (app: INestApplication, kind: SocketKind): INestApplication =>
  app.useWebSocketAdapter(kind === 'ws' ? new WsAdapter(app) : new IoAdapter(app));

export function socketsTo(url: string, kind: SocketKind): Sockets {
  const open = new Set<SocketClient>();
  const connect = async (): Promise<SocketClient> => {
    const client = await (kind === 'ws' ? connectWs(url) : connectSocketIo(url));
    open.add(client);
    return client;
  };
  return {
    connect,
    async send(event, data) {
      const client = await connect();
      try {
        return await client.send(event, data);
      } finally {
        client.close();
        open.delete(client);
      }
    },
    close() {
      for (const client of open) client.close();
    },
  };
}

/** Notes what comes, and hands it to whoever waits for it. */
class Inbox {
  readonly received: Reply[] = [];
  #waiting: ((reply: Reply) => void) | undefined;

  next(): Promise<Reply> {
    return new Promise((resolve) => (this.#waiting = resolve));
  }

  readonly take = (reply: Reply): void => {
    this.received.push(reply);
    this.#waiting?.(reply);
    this.#waiting = undefined;
  };
}

async function connectSocketIo(url: string): Promise<SocketClient> {
  const socket = io(url, { transports: ['websocket'], forceNew: true, reconnection: false });
  const inbox = new Inbox();
  socket.onAny((event: string, data: unknown) =>
    inbox.take(event === 'exception' ? { exception: data } : { answer: { event, data } }),
  );
  await new Promise<void>((resolve, reject) => socket.once('connect', resolve).once('connect_error', reject));
  return {
    received: inbox.received,
    send(event, data) {
      const reply = inbox.next();
      socket.emit(event, data, (answer: unknown) => inbox.take({ answer }));
      return reply;
    },
    close: () => void socket.close(),
  };
}

async function connectWs(url: string): Promise<SocketClient> {
  const socket = new WebSocket(url.replace('http', 'ws'));
  const inbox = new Inbox();
  socket.on('message', (text: Buffer) => {
    const answer = JSON.parse(text.toString()) as { event?: unknown; data?: unknown } | null;
    inbox.take(answer?.event === 'exception' ? { exception: answer.data } : { answer });
  });
  await once(socket, 'open');
  return {
    received: inbox.received,
    send(event, data) {
      const reply = inbox.next();
      socket.send(JSON.stringify({ event, data }));
      return reply;
    },
    close: () => socket.close(),
  };
}
