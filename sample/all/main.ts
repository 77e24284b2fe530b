import { randomBytes } from 'node:crypto';
import { createApp, LOG_LEVELS } from './create-app.js';

const DEFAULT_PORT = 3000;
const PASSWORD_BYTES = 15;

async function start(): Promise<void> {
  const { PORT, REDIS_URL, SECRETS_KEY, OPERATOR_PASSWORD, ADAPTER = 'express' } = process.env;
  if (ADAPTER !== 'express' && ADAPTER !== 'fastify')
    throw new Error(`ADAPTER must be express or fastify, got "${ADAPTER}".`);
  const port = PORT ? Number(PORT) : DEFAULT_PORT;
  if (!Number.isInteger(port) || port < 1 || port > 65_535)
    throw new Error(`PORT must be a number from 1 to 65535, got "${PORT}".`);

  // A password that is printed is for who sits at this machine: nobody else can reach the app then.
  const operatorPassword = OPERATOR_PASSWORD || randomBytes(PASSWORD_BYTES).toString('base64url');

  const app = await createApp({
    operatorPassword,
    redisUrl: REDIS_URL || undefined,
    secretsKey: SECRETS_KEY || undefined,
    adapter: ADAPTER,
  });
  app.enableShutdownHooks();
  await app.init();
  app.useLogger(false); // The error below would otherwise be printed by Nest as well.
  const listening = OPERATOR_PASSWORD ? app.listen(port) : app.listen(port, '127.0.0.1');
  await listening.catch((error: unknown) => rejectPort(port, error));
  app.useLogger(LOG_LEVELS);
  const backend = REDIS_URL ? 'Redis' : 'memory';
  console.log(`Open http://localhost:${port} (${backend} backend, ${ADAPTER}). Ctrl+C ends it.`);
  if (!OPERATOR_PASSWORD)
    console.log(
      `The password of operators is ${operatorPassword}. Set OPERATOR_PASSWORD to have one of yours, and to be reached from other machines.`,
    );
}

function rejectPort(port: number, cause: unknown): never {
  const { code } = cause as NodeJS.ErrnoException;
  if (code === 'EADDRINUSE')
    throw new Error(
      `Port ${port} is taken. Choose another one: PORT=${port === 3001 ? 3002 : 3001} npm start`,
    );
  if (code === 'EACCES') throw new Error(`Port ${port} needs more rights. Choose one above 1023.`);
  throw cause;
}

start().catch((error: Error) => {
  console.error(`The sample did not start. ${error.message}`);
  process.exit(1);
});
