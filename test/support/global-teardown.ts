import { rmSync } from 'node:fs';

export default async function teardown(): Promise<void> {
  if (!globalThis.testRun) return;
  const { folder, servers } = globalThis.testRun;
  await Promise.all(servers.map((server) => server.stop()));
  rmSync(folder, { recursive: true, force: true });
}
