import { build } from 'esbuild';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run } from './packed-apps.js';

type Minify = (code: string, options: object) => Promise<{ code?: string }>;
const { minify } = jest.requireActual<{ minify: Minify }>('terser');
const ROOT = join(__dirname, '../..');

// The quick part of everywhere.suite.ts: terser, which inlines constructors in its second pass, on lib/ in one scope.
it('errors are of their classes, and have their names, after terser', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-minified-'));
  const program = `
    import { createMemoryBackend, LockError, SyncGuardConfigError, SyncGuardError } from './lib/core.ts';
    const error = await createMemoryBackend().acquire({ key: '', ttlMs: 1 }).catch((error) => error);
    console.log(JSON.stringify({
      name: error.name,
      is: [LockError, SyncGuardError, SyncGuardConfigError].map((type) => error instanceof type),
    }));`;
  const bundle = await build({
    stdin: { contents: program, resolveDir: ROOT },
    ...{ bundle: true, write: false, platform: 'node', format: 'esm', external: ['ioredis'] },
  });
  const code = bundle.outputFiles[0]?.text ?? '';
  const minified = await minify(code, { module: true, keep_classnames: false, compress: { passes: 2 } });
  const file = join(folder, 'main.mjs');
  writeFileSync(file, minified.code ?? '');
  try {
    expect(JSON.parse(await run(process.execPath, [file], folder))).toEqual({
      name: 'LockError',
      is: [true, true, false],
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});
