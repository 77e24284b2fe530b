import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { buildProgram } from '../../fault/workers/build-worker.js';
import { ROOT } from '../sources.js';

/**
 * Starts an instance of the app of a guide in a process of its own, and waits until it is at work.
 *
 * @returns what kills it, as `kill -9` does
 */
export async function startToKill(
  guide: 'leader' | 'job-queue',
  redisUrl: string,
): Promise<() => Promise<void>> {
  const alias = { 'nestjs-syncguard': join(ROOT, 'lib/index.ts') };
  const { folder, program } = await buildProgram(join(__dirname, 'instance-to-kill.ts'), alias);
  const instance = spawn(process.execPath, [program, guide], {
    env: { ...process.env, REDIS_URL: redisUrl },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(instance, 'exit');
  const kill = async (): Promise<void> => {
    instance.kill('SIGKILL');
    await ended;
  };
  const first = await Promise.race([once(instance.stdout, 'data'), ended]);
  rmSync(folder, { recursive: true });
  if (!Buffer.isBuffer(first[0])) throw new Error('The instance ended before it was at work.');
  return kill;
}
