import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';

/** A server that gives every script the same answer, whatever it asks. */
export async function startLyingServer(
  answer: () => readonly string[],
): Promise<AsyncDisposable & { readonly port: number; scripts: number }> {
  const text = (each: string): string => `$${Buffer.byteLength(each)}\r\n${each}\r\n`;
  const lying = { port: 0, scripts: 0, [Symbol.asyncDispose]: async () => void server.close() };
  const server = createServer((socket) => {
    socket.unref().on('error', () => {});
    socket.on('data', (chunk) => {
      for (const [, command = ''] of chunk.toString('latin1').matchAll(/\*\d+\r\n\$\d+\r\n(\w+)/g)) {
        if (/^eval/i.test(command)) {
          lying.scripts++;
          const parts = answer();
          socket.write(`*${parts.length}\r\n${parts.map(text).join('')}`);
        } else socket.write(/^info$/i.test(command) ? text('redis_version:7.0.0') : '+OK\r\n');
      }
    });
  });
  server.listen(0, '127.0.0.1').unref();
  await once(server, 'listening');
  lying.port = (server.address() as AddressInfo).port;
  return lying;
}
