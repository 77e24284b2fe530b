// Starts a sample: `npm run sample pay-once`. Compiles it before, with the package, unless nothing has changed since.
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const root = resolve(import.meta.dirname, '..');
const dist = join(root, 'sample/dist');

const changedAt = (...folders) =>
  Math.max(
    ...folders.flatMap((folder) =>
      readdirSync(folder, { recursive: true })
        .filter((name) => /(?<!\.d)\.ts$/.test(name))
        .map((name) => statSync(join(folder, name)).mtimeMs),
    ),
  );
const compiledAt = [join(root, 'dist/cjs/index.js'), join(dist, 'all/main.js')].map((file) =>
  existsSync(file) ? statSync(file).mtimeMs : 0,
);
if (Math.min(...compiledAt) < changedAt(join(root, 'lib'), join(root, 'sample'))) {
  execFileSync(process.execPath, [join(root, 'tools/build.mjs')], { stdio: 'inherit' });
  const tsc = join(root, 'node_modules/typescript/bin/tsc');
  execFileSync(process.execPath, [tsc, '-p', join(root, 'sample/tsconfig.json')], { stdio: 'inherit' });
}

const program = join(dist, process.argv[2] ?? '', 'main.js');
if (existsSync(program)) await import(pathToFileURL(program));
else {
  console.error(`Name a sample: ${readdirSync(dist).join(', ')}.`);
  process.exit(1);
}
