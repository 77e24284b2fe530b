import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';

/** Bundles a worker of this folder for Node, in a folder of its own beside the packages that it needs. */
export async function buildWorker(name: string): Promise<{ folder: string; program: string }> {
  const folder = mkdtempSync(join(__dirname, `../../../node_modules/.${name}-`));
  const program = join(folder, 'worker.mjs');
  await build({
    entryPoints: [join(__dirname, `${name}.ts`)],
    outfile: program,
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
    logLevel: 'error',
  });
  return { folder, program };
}
