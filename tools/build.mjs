// Builds the package: `node tools/build.mjs [folder]`, into dist/ where no folder is given.
//
// A few files of each format, because to open two hundred costs more than to read what is in them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire, SourceMap } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { encode } from '@jridgewell/sourcemap-codec';
import { rollup } from 'rollup';
import { dts } from 'rollup-plugin-dts';

const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc');
const root = resolve(import.meta.dirname, '..');
const target = resolve(process.argv[2] ?? join(root, 'dist'));

const ENTRIES = ['index', 'core', 'compat', 'throttler', 'opentelemetry', 'testing/index'];
/**
 * What is loaded together: all that these modules load, but for what an earlier file holds. So no two files load each
 * other. The first one is without Nest; the last three are loaded at the boot of an app that uses them.
 */
const CHUNKS = {
  'syncguard.core': ['core', 'compat'],
  'syncguard.nest': ['index'],
  'syncguard.scripts': ['assembly/all-scripts'],
  'syncguard.memory': ['assembly/memory-backends'],
  'syncguard.redis': ['assembly/redis-backends', 'assembly/redis-connection'],
};
const FORMATS = [
  { folder: 'cjs', type: 'commonjs', format: 'cjs' },
  { folder: 'esm', type: 'module', format: 'es' },
];

const KEPT_AS_WRITTEN = { minifyInternalExports: false, hoistTransitiveImports: false };

async function compile(config, outDir, flags) {
  const args = [tsc, '-p', config, '--outDir', outDir, ...flags];
  const compiler = spawn(process.execPath, args, { cwd: root, stdio: 'inherit' });
  const [code] = await once(compiler, 'exit');
  if (code !== 0) throw new Error(`tsc -p ${config} ended with ${code}.`);
}

function write(file, text) {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

/**
 * One set of types serves both formats: a class of one format has the type of the other one's. It holds what the entries
 * show and what that names: most types are inside the package, and of no use to anybody.
 */
async function buildTypes() {
  const compiled = mkdtempSync(join(tmpdir(), 'syncguard-types-'));
  try {
    await compile('tsconfig.build.json', compiled, ['--emitDeclarationOnly']);
    const bundle = await rollup({
      input: Object.fromEntries(ENTRIES.map((entry) => [entry, join(compiled, `${entry}.d.ts`)])),
      external: isForeign,
      plugins: [dts()],
      onwarn: refuse,
    });
    const dir = join(target, 'cjs');
    await bundle.write({ dir, format: 'es', chunkFileNames: 'types/[name].ts', ...KEPT_AS_WRITTEN });
    await bundle.close();
  } finally {
    rmSync(compiled, { recursive: true, force: true });
  }
  for (const entry of ENTRIES) {
    const file = join(target, 'esm', `${entry}.d.ts`);
    const from = relative(dirname(file), join(target, 'cjs', entry));
    write(file, `export * from '${from}.js';\n`);
  }
}

/** Compiles into a folder beside the target, so that the paths in source maps are those from dist/ to lib/. */
async function buildCode() {
  const compiled = mkdtempSync(join(tmpdir(), 'syncguard-build-'));
  try {
    // Types are checked by buildTypes(). People read the declarations, which keep their comments.
    const flags = [
      '--noCheck',
      '--declaration',
      'false',
      '--removeComments',
      '--sourceMap',
      '--inlineSources',
    ];
    await compile('tsconfig.build.esm.json', compiled, flags);
    const bundle = await rollup({
      input: Object.fromEntries(ENTRIES.map((entry) => [entry, join(compiled, `${entry}.js`)])),
      external: isForeign,
      plugins: [readCompiled(compiled), keptInOneFile],
      onwarn: refuse,
    });
    let chunks;
    for (const { folder, type, format } of FORMATS) {
      const dir = join(target, folder);
      await bundle.write({
        ...{ dir, format, chunkFileNames: '[name].js', ...KEPT_AS_WRITTEN },
        manualChunks: (id, graph) => (chunks ??= chunksOf(compiled, graph)).get(id),
        sourcemap: true,
        sourcemapExcludeSources: format === 'cjs', // Node loads the other one, whether by `require` or by `import`.
        // As if dist/ were beside lib/.
        sourcemapPathTransform: (path, map) =>
          relative(join(root, 'dist', folder, dirname(relative(dir, map))), resolve(dirname(map), path)),
      });
      mapLines(dir);
      write(join(dir, 'package.json'), `{ "type": "${type}" }\n`);
    }
    await bundle.close();
  } finally {
    rmSync(compiled, { recursive: true, force: true });
  }
}

const isForeign = (id) => /^[^./]/.test(id);

const refuse = (warning) => {
  // The helpers that tsc writes ask for `this`.
  if (warning.code !== 'THIS_IS_UNDEFINED') throw new Error(warning.message);
};

/** Reads what tsc wrote, with a line above that says which file of lib/ it is: stack lines name the bundle. */
const readCompiled = (compiled) => ({
  name: 'read-compiled',
  load(id) {
    const source = `lib/${relative(compiled, id).replace(/js$/, 'ts')}`;
    const code = readFileSync(id, 'utf8').replace(/^\/\/# sourceMappingURL=.*/m, '');
    const map = JSON.parse(readFileSync(`${id}.map`, 'utf8'));
    map.sources = [join(root, source)];
    return { code: `// ${source}\n${code}`, map: { ...map, mappings: `;${map.mappings}` } };
  },
});

/** Tells webpack and rspack to write no more files for what we load late: many deploy the one file only. */
const keptInOneFile = {
  name: 'kept-in-one-file',
  renderDynamicImport: ({ targetModuleId, format }) =>
    /^[./]/.test(targetModuleId) && format === 'es'
      ? { left: 'import(/* webpackMode: "eager" */ ', right: ')' }
      : null,
};

/** Leaves of a source map where each line is from. A map of each word is as large as the code. */
function mapLines(dir) {
  for (const name of readdirSync(dir, { recursive: true })) {
    if (!name.endsWith('.js.map')) continue;
    const map = JSON.parse(readFileSync(join(dir, name), 'utf8'));
    const places = new SourceMap(map);
    const lines = readFileSync(join(dir, name.replace(/\.map$/, '')), 'utf8').split('\n');
    const segments = lines.map((line, i) => {
      const column = Math.max(0, line.search(/\S/));
      const { originalSource, originalLine, originalColumn } = places.findEntry(i, column);
      if (originalSource === undefined) return [];
      return [[column, map.sources.indexOf(originalSource), originalLine, originalColumn]];
    });
    writeFileSync(join(dir, name), JSON.stringify({ ...map, names: [], mappings: encode(segments) }));
  }
}

/** Returns the name of the file that holds each module. */
function chunksOf(compiled, { getModuleInfo }) {
  const chunks = new Map();
  const visit = (id, chunk) => {
    const info = getModuleInfo(id);
    if (chunks.has(id) || !info || info.isExternal) return;
    chunks.set(id, chunk);
    for (const imported of info.importedIds) visit(imported, chunk);
  };
  for (const [chunk, modules] of Object.entries(CHUNKS))
    for (const module of modules) visit(join(compiled, `${module}.js`), chunk);
  return chunks;
}

rmSync(target, { recursive: true, force: true });
await Promise.all([buildTypes(), buildCode()]);
