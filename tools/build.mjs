// Builds the package: `node tools/build.mjs [folder]`, into dist/ where no folder is given.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc');
const root = resolve(import.meta.dirname, '..');
const target = resolve(process.argv[2] ?? join(root, 'dist'));

const FORMATS = [
  { folder: 'cjs', type: 'commonjs', args: ['-p', 'tsconfig.build.json'] },
  // The same sources: checked once is enough.
  { folder: 'esm', type: 'module', args: ['-p', 'tsconfig.build.esm.json', '--noCheck'] },
];

async function compile({ folder, type, args }) {
  const outDir = join(target, folder);
  const compiler = spawn(process.execPath, [tsc, ...args, '--outDir', outDir], {
    cwd: root,
    stdio: 'inherit',
  });
  const [code] = await once(compiler, 'exit');
  if (code === 0) writeFileSync(join(outDir, 'package.json'), `{ "type": "${type}" }\n`);
  else process.exitCode = 1;
}

rmSync(target, { recursive: true, force: true });
await Promise.all(FORMATS.map(compile));
