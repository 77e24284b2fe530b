import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { buildProgram } from '../fault/workers/build-worker.js';

/** The bundles of worker.ts, with either ioredis. */
export interface Programs {
  readonly ioredis: string;
  readonly ioredis5: string;
}

/** Builds them; the second is to be called when they are not needed any more. */
export async function buildPrograms(): Promise<[Programs, () => void]> {
  const source = join(__dirname, 'worker.ts');
  const [six, five] = await Promise.all([
    buildProgram(source),
    buildProgram(source, { ioredis: 'ioredis5' }),
  ]);
  const clear = (): void =>
    [six, five].forEach(({ folder }) => rmSync(folder, { recursive: true, force: true }));
  return [{ ioredis: six.program, ioredis5: five.program }, clear];
}
