import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

/** One client's connection and the one to the server that stands for it. */
interface Link {
  readonly client: Socket;
  readonly server: Socket;
  /** The next reply is lost, and the connection with it. */
  losesReply: boolean;
}

type Deliver = (chunk: Buffer) => Promise<void>;

/** A network between a client and a server on loopback, which a test slows down and breaks. */
export class TcpProxy {
  readonly host = '127.0.0.1';
  /** What clients sent so far. A pipeline that goes out at once is one chunk: chunks stand for round trips. */
  readonly sent = { chunks: 0, bytes: 0 };

  private readonly listener = createServer((client) => this.accept(client));
  private readonly links = new Set<Link>();
  private listeningPort = 0;
  private delayMs = 0;
  private dripping = false;
  /** The proxies of which the first one that gets a request loses its reply. */
  private cuts: TcpProxy[] = [];
  private gate: Promise<void> | undefined;
  private openGate = (): void => {};

  /** @internal Use startTcpProxy(). */
  constructor(private targetPort: number) {}

  get port(): number {
    return this.listeningPort;
  }

  get url(): string {
    return `redis://${this.host}:${this.port}`;
  }

  /** How many clients are connected now. */
  get connections(): number {
    return [...this.links].filter(({ client }) => !client.closed).length;
  }

  /** From the next connection on: the name leads to another server. */
  leadTo(port: number): void {
    this.targetPort = port;
  }

  /** Every byte takes this long, each way. */
  delay(ms: number): void {
    this.delayMs = ms;
  }

  /**
   * The next request reaches the server, and is carried out; in place of its reply the client loses its connection.
   * Connect first and have nothing in flight: a client's greeting is a request too. Of several proxies, only the one that
   * gets the request cuts: what is sent once the loss is known gets through.
   */
  cutAfterRequest(...others: TcpProxy[]): void {
    this.cuts = [this, ...others];
    for (const proxy of others) proxy.cuts = this.cuts;
  }

  /** The line goes dead: nothing gets through, and nobody is told. `restore()` delivers what was held up. */
  halfOpen(): void {
    this.gate ??= new Promise((resolve) => (this.openGate = resolve));
  }

  /** Both ways in pieces of one byte. */
  byteByByte(): void {
    this.dripping = true;
  }

  /** Cuts all connections and refuses new ones. */
  async refuse(): Promise<void> {
    const closed = once(this.listener, 'close');
    if (!this.listener.listening) return;
    this.listener.close();
    for (const link of this.links) hangUp(link);
    await closed;
  }

  /** A sound network again. */
  async restore(): Promise<void> {
    this.delayMs = 0;
    this.dripping = false;
    this.cuts = [];
    this.openGate();
    this.gate = undefined;
    await this.listen();
  }

  async stop(): Promise<void> {
    await this.refuse();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  /** @internal */
  async listen(): Promise<void> {
    if (this.listener.listening) return;
    this.listener.listen(this.listeningPort, this.host);
    await once(this.listener, 'listening');
    this.listeningPort = (this.listener.address() as AddressInfo).port;
  }

  private accept(client: Socket): void {
    const link: Link = { client, server: connect(this.targetPort, this.host), losesReply: false };
    this.links.add(link);
    for (const socket of [client, link.server]) socket.on('close', () => this.forget(link));
    client.on('data', ({ length }: Buffer) => {
      this.sent.chunks++;
      this.sent.bytes += length;
    });
    this.pump(client, link.server, (request) => this.forwardRequest(link, request));
    this.pump(link.server, client, (reply) => this.forwardReply(link, reply));
  }

  private forget(link: Link): void {
    if (link.client.closed && link.server.closed) this.links.delete(link);
  }

  /** Hands on what comes, in order, each piece after its delay, and none while the gate is shut. */
  private pump(from: Socket, to: Socket, deliver: Deliver): void {
    let line: Promise<unknown> = Promise.resolve();
    const enqueue = (step: () => unknown): void => {
      const due = this.delayMs > 0 ? sleep(this.delayMs, undefined, { ref: false }) : undefined;
      line = Promise.all([line, due])
        .then(() => this.gate)
        .then(step);
    };
    from.setNoDelay(true);
    from.on('error', () => {}); // followed by 'close'
    from.on('data', (chunk: Buffer) => enqueue(() => deliver(chunk)));
    from.on('close', () => enqueue(() => to.end()));
  }

  private async forwardRequest(link: Link, request: Buffer): Promise<void> {
    link.losesReply ||= this.cuts.length > 0;
    for (const proxy of this.cuts) proxy.cuts = [];
    await this.write(link.server, request);
  }

  private async forwardReply(link: Link, reply: Buffer): Promise<void> {
    if (link.losesReply) hangUp(link);
    else await this.write(link.client, reply);
  }

  private async write(to: Socket, chunk: Buffer): Promise<void> {
    if (!this.dripping) {
      to.write(chunk);
      return;
    }
    for (const byte of chunk) {
      await nextTurn(); // in which a peer in this process reads the byte before
      await this.gate;
      to.write(Buffer.of(byte));
    }
  }
}

function hangUp({ client, server }: Link): void {
  client.destroy();
  server.destroy();
}

/**
 * Puts a network that breaks in front of a server on loopback. `stop()` it, or let `await using` do so.
 *
 * @example await using proxy = await startTcpProxy(server.port);
 */
export async function startTcpProxy(targetPort: number): Promise<TcpProxy> {
  const proxy = new TcpProxy(targetPort);
  await proxy.listen();
  return proxy;
}
