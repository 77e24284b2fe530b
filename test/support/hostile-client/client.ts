import {
  connect as connectHttp2,
  constants,
  type ClientHttp2Session,
  type ClientHttp2Stream,
} from 'node:http2';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Composition } from './compose.js';

export interface Request {
  readonly path: string;
  readonly body: object;
  readonly pauseMs: number;
  /** Whether the body is a form. A field with a list stands there once for each of its items. */
  readonly isForm?: boolean;
}

const typeOf = ({ isForm }: Request): string =>
  isForm ? 'application/x-www-form-urlencoded' : 'application/json';

function textOf({ body, isForm }: Request): string {
  if (!isForm) return JSON.stringify(body);
  const fields = Object.entries(body).flatMap(([name, value]) =>
    [value].flat().map((each): [string, string] => [name, String(each)]),
  );
  return new URLSearchParams(fields).toString();
}

/** How long a client waits for an answer that it may never get. What counts is what the server did. */
const PATIENCE_MS = 500;
const HANG_UP_MS = 4;

export interface Manners extends Pick<Composition, 'transport' | 'behaviour'> {
  /** How long it waits for an answer, in ms. */
  readonly patienceMs?: number;
}

/** Sends requests in the way of a composition. Resolves to the statuses it has read, when it wants nothing more. */
export interface HostileClient {
  send(requests: readonly Request[]): Promise<number[]>;
  close(): void;
}

export const clientOf = (
  port: number,
  { transport, behaviour, patienceMs = PATIENCE_MS }: Manners,
): HostileClient =>
  transport === 'http2'
    ? new Http2Client(port, behaviour, patienceMs)
    : new Http1Client(port, behaviour, transport, patienceMs);

/** Requests over raw sockets. Those that are pipelined stand behind a download. */
class Http1Client implements HostileClient {
  readonly #sockets = new Set<Socket>();
  #kept: Socket | undefined;

  constructor(
    private readonly port: number,
    private readonly behaviour: Composition['behaviour'],
    private readonly transport: Composition['transport'],
    private readonly patienceMs: number,
  ) {}

  async send(requests: readonly Request[]): Promise<number[]> {
    if (this.transport === 'pipelined') return this.#exchange(this.#open(), requests, true);
    if (this.transport !== 'keep-alive')
      return (await Promise.all(requests.map((each) => this.#exchange(this.#open(), [each])))).flat();
    const statuses: number[] = [];
    for (const each of requests) {
      if (!this.#kept || this.#kept.destroyed || this.#kept.writableEnded) this.#kept = this.#open();
      statuses.push(...(await this.#exchange(this.#kept, [each])));
    }
    return statuses;
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  #open(): Socket {
    const socket = connect({ port: this.port, host: '127.0.0.1', allowHalfOpen: true });
    socket.on('error', () => {});
    this.#sockets.add(socket);
    socket.once('close', () => this.#sockets.delete(socket));
    return socket;
  }

  async #exchange(socket: Socket, requests: readonly Request[], behindDownload = false): Promise<number[]> {
    const { behaviour } = this;
    const reads = behaviour !== 'reads nothing';
    const answers = reads ? readAnswers(socket, requests.length + (behindDownload ? 1 : 0)) : undefined;
    if (!reads) socket.pause();
    if (behindDownload) socket.write('GET /download HTTP/1.1\r\nHost: x\r\n\r\n');
    for (const each of requests) await writeRequest(socket, each, behaviour === 'trickles its body');
    switch (behaviour) {
      case 'hangs up before':
        await flushed(socket);
        socket.destroy();
        return [];
      case 'hangs up while':
        await sleep(HANG_UP_MS);
        socket.destroy();
        return [];
      case 'half-closes':
        socket.end();
        break;
      case 'reads nothing':
        await sleep(HANG_UP_MS);
        return [];
      default: // Wants an answer.
    }
    const statuses = await Promise.race([
      answers as Promise<number[]>,
      sleep(this.patienceMs, [], { ref: false }),
    ]);
    if (behaviour === 'hangs up after') socket.destroy();
    return behindDownload ? statuses.slice(1) : statuses;
  }
}

const flushed = (socket: Socket): Promise<void> =>
  new Promise((resolve) => {
    socket.write('', () => resolve());
    socket.once('close', () => resolve());
  });

async function writeRequest(socket: Socket, request: Request, trickles: boolean): Promise<void> {
  const { path, pauseMs } = request;
  const text = textOf(request);
  const head = `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Type: ${typeOf(request)}\r\nX-Pause: ${pauseMs}\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n`;
  if (!trickles) return void socket.write(head + text);
  socket.write(head);
  for (let i = 0; i < text.length; i += 24) {
    await sleep(1);
    socket.write(text.slice(i, i + 24));
  }
}

/** Resolves when so many answers have come, or the connection has ended. Bodies contain no line of a status. */
function readAnswers(socket: Socket, count: number): Promise<number[]> {
  return new Promise((resolve) => {
    const statuses: number[] = [];
    let rest = '';
    const read = (chunk: Buffer): void => {
      rest += chunk.toString('latin1');
      for (const [, status] of rest.matchAll(/HTTP\/1\.1 (\d{3}) /g)) statuses.push(Number(status));
      rest = rest.slice(-12).replace(/HTTP\/1\.1 \d{3} /g, '');
      if (statuses.length >= count) done();
    };
    const done = (): void => {
      socket.off('data', read);
      resolve(statuses);
    };
    socket.on('data', read);
    socket.once('end', done);
    socket.once('close', done);
  });
}

/** Streams of one session. A client that reads nothing gives them a window of 0. */
class Http2Client implements HostileClient {
  readonly #session: ClientHttp2Session;

  constructor(
    port: number,
    private readonly behaviour: Composition['behaviour'],
    private readonly patienceMs: number,
  ) {
    const settings = behaviour === 'reads nothing' ? { initialWindowSize: 0 } : {};
    this.#session = connectHttp2(`http://127.0.0.1:${port}`, { settings });
    this.#session.on('error', () => {});
  }

  async send(requests: readonly Request[]): Promise<number[]> {
    return (await Promise.all(requests.map((each) => this.#exchange(each)))).flat();
  }

  close(): void {
    this.#session.destroy();
  }

  async #exchange(request: Request): Promise<number[]> {
    if (this.#session.destroyed) return [];
    const { path, pauseMs } = request;
    const headers = { 'content-type': typeOf(request), 'x-pause': String(pauseMs) };
    const stream = this.#session.request({ ':method': 'POST', ':path': path, ...headers });
    stream.on('error', () => {});
    const answered = new Promise<number[]>((resolve) => {
      stream.once('response', (answer) => resolve([Number(answer[':status'])]));
      stream.once('close', () => resolve([]));
    });
    const text = textOf(request);
    if (this.behaviour === 'trickles its body') await trickle(stream, text);
    else stream.end(text);
    const cancel = (): void => stream.close(constants.NGHTTP2_CANCEL);
    switch (this.behaviour) {
      case 'hangs up before':
        await sleep(1);
        cancel();
        return [];
      case 'cancels':
      case 'hangs up while':
        await sleep(HANG_UP_MS);
        cancel();
        return [];
      default: // Wants an answer.
    }
    const status = await Promise.race([answered, sleep(this.patienceMs, [], { ref: false })]);
    if (this.behaviour === 'reads nothing') return [];
    if (this.behaviour === 'hangs up after') cancel();
    else stream.resume();
    return status;
  }
}

async function trickle(stream: ClientHttp2Stream, text: string): Promise<void> {
  for (let i = 0; i < text.length && !stream.destroyed; i += 24) {
    await sleep(1);
    stream.write(text.slice(i, i + 24));
  }
  stream.end();
}
