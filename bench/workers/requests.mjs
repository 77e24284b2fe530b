// node requests.mjs PORT COUNT: makes exactly COUNT requests of 1,000 clients, over 64 connections.
import { connect } from 'node:net';

const [port, count] = process.argv.slice(2).map(Number);
let left = count;

const lane = () =>
  new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1');
    const ask = () => {
      if (left === 0) return resolve(socket.destroy());
      socket.write(`GET /hello HTTP/1.1\r\nhost: bench\r\nx-client: c${left-- % 1000}\r\n\r\n`);
    };
    socket.setEncoding('latin1').on('connect', ask).on('error', reject);
    socket.on('data', (text) => text.endsWith('}') && ask()); // The end of the JSON of an answer.
  });

await Promise.all(Array.from({ length: Math.min(64, count) }, lane));
