import { createApp, LOG_LEVELS } from './create-app.js';

const DEFAULT_PORT = 3000;

async function start(): Promise<void> {
  const { PORT, REDIS_URL, SECRETS_KEY, ADAPTER = 'express' } = process.env;
  if (ADAPTER !== 'express' && ADAPTER !== 'fastify')
    throw new Error(`ADAPTER must be express or fastify, got "${ADAPTER}".`);
  const port = PORT ? Number(PORT) : DEFAULT_PORT;
  if (!Number.isInteger(port) || port < 1 || port > 65_535)
    throw new Error(`PORT must be a number from 1 to 65535, got "${PORT}".`);

  const app = await createApp({
    redisUrl: REDIS_URL || undefined,
    secretsKey: SECRETS_KEY || undefined,
    adapter: ADAPTER,
  });
  app.enableShutdownHooks();
  await app.init();
  app.useLogger(false); // The error below would otherwise be printed by Nest as well.
  await app.listen(port).catch((error: unknown) => rejectPort(port, error));
  app.useLogger(LOG_LEVELS);
  const backend = REDIS_URL ? 'Redis' : 'memory';
  console.log(`Open http://localhost:${port} (${backend} backend, ${ADAPTER}). Ctrl+C ends it.`);
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
