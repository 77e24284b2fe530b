// Builds the package: `node tools/build.mjs [folder]`, into dist/ where no folder is given.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative, resolve } from 'node:path';
import { transformSync } from 'esbuild';
import ts from 'typescript';

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
  if (code !== 0) {
    process.exitCode = 1;
    return;
  }
  writeFileSync(join(outDir, 'package.json'), `{ "type": "${type}" }\n`);
  if (folder === 'cjs') removeUnreachedTypes(outDir);
  else pointTypesAt('cjs', outDir);
  removeComments(outDir);
}

const filesIn = (folder, extension) =>
  readdirSync(folder, { recursive: true })
    .filter((name) => name.endsWith(extension))
    .map((name) => join(folder, name));
const declarationsIn = (folder) => filesIn(folder, '.d.ts');

const ENTRIES = ['index', 'core', 'compat', 'testing/index'];

/** Most modules are inside the package: their types are of no use to anybody. */
function removeUnreachedTypes(outDir) {
  const reached = new Set();
  const visit = (file) => {
    if (reached.has(file)) return;
    reached.add(file);
    for (const [, name] of readFileSync(file, 'utf8').matchAll(/['"](\.{1,2}\/[^'"]+)\.js['"]/g))
      visit(join(dirname(file), `${name}.d.ts`));
  };
  for (const entry of ENTRIES) visit(join(outDir, `${entry}.d.ts`));
  for (const file of declarationsIn(outDir)) if (!reached.has(file)) rmSync(file);
}

/** One set of types serves both formats: half of the files, and a class of one format has the type of the other one's. */
function pointTypesAt(folder, outDir) {
  for (const file of declarationsIn(outDir)) rmSync(file);
  for (const entry of ENTRIES) {
    const from = relative(dirname(join(outDir, entry)), join(target, folder, entry));
    writeFileSync(join(outDir, `${entry}.d.ts`), `export * from '${from}.js';\n`);
  }
}

/**
 * People read the declarations, which keep their comments. Those of the code would be a tenth of what is installed, and
 * its wide indents, which esbuild halves, some more.
 */
function removeComments(outDir) {
  const printer = ts.createPrinter({ removeComments: true });
  for (const file of filesIn(outDir, '.js')) {
    const source = ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.ES2022);
    const options = { legalComments: 'none', target: 'es2022', charset: 'utf8' };
    writeFileSync(file, withNames(transformSync(printer.printFile(source), options).code));
  }
}

/**
 * esbuild calls the class of `let LockService = class LockService` LockService2, since two bindings have one name. Nest and
 * error stacks show the name of the class.
 */
const withNames = (code) =>
  [...code.matchAll(/ (\w+) = (?:\w+ = )?class (\1\d+)\b/g)].reduce(
    (text, [, name, renamed]) => text.replaceAll(new RegExp(`\\b${renamed}\\b`, 'g'), name),
    code,
  );

rmSync(target, { recursive: true, force: true });
await Promise.all(FORMATS.map(compile));
