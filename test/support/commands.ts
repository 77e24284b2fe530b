import type { Redis } from 'ioredis';
import { once } from 'node:events';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

const END = 'the end of what is looked at';

/**
 * The names of the commands that a client sent while a function ran, and of those that its scripts ran, as MONITOR shows them.
 * What other connections send is left out: an earlier test may have begun something that comes to the server only now.
 */
export async function commandsOf(client: Redis, run: () => Promise<unknown>): Promise<string[]> {
  const { host, port } = client.options;
  const [, address] = /\baddr=(\S+)/.exec(String(await client.client('INFO'))) ?? [];
  // The MONITOR of ioredis fails on a line that arrives together with its OK.
  const socket = connect(port!, host);
  const lines = createInterface({ input: socket });
  socket.write('MONITOR\r\n');
  await once(lines, 'line');
  const names: string[] = [];
  const seen = (async () => {
    let isOurs = false;
    // Commands are shown in the order in which they ran, and what a script ran behind the script.
    for await (const line of lines) {
      const [, source, name = ''] = /^\+[\d.]+ \[\d+ (\S+)\] "(\w+)"/.exec(line) ?? [];
      if (source !== 'lua') isOurs = source === address;
      if (isOurs && line.includes(END)) return;
      if (isOurs) names.push(name.toUpperCase());
    }
  })();
  await run();
  await client.echo(END);
  await seen;
  socket.destroy();
  return names;
}
