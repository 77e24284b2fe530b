import { mkdtempSync } from 'node:fs';
import { basename, join } from 'node:path';
import { build } from 'esbuild';

/** Bundles a worker of this folder for Node. */
export const buildWorker = (name: string): Promise<{ folder: string; program: string }> =>
  buildProgram(join(__dirname, `${name}.ts`));

/**
 * Bundles a program for Node, in a folder of its own beside the packages that it needs.
 *
 * @param alias - packages in whose place others are imported
 */
export async function buildProgram(
  source: string,
  alias: Readonly<Record<string, string>> = {},
): Promise<{ folder: string; program: string }> {
  const folder = mkdtempSync(join(__dirname, `../../../node_modules/.${basename(source, '.ts')}-`));
  const program = join(folder, 'worker.mjs');
  await build({
    entryPoints: [source],
    outfile: program,
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
    alias,
    logLevel: 'error',
  });
  return { folder, program };
}
