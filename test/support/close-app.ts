import type { INestApplication } from '@nestjs/common';
import type { Server } from 'node:http';

/**
 * Closes an app and what clients left open. `fetch` opens connections that it may never use, and a server waits for
 * those that have asked for nothing yet: up to a minute.
 */
export async function closeApp(app: INestApplication): Promise<void> {
  (app.getHttpServer() as Server).closeAllConnections();
  await app.close();
}
