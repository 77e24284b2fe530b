// Makes one minified file of a program: `node bundle.mjs <bundler> <program> <bundle>`. Minifiers may rename all classes and
// functions. See ../../bundlers.suite.ts.
import { execFileSync } from 'node:child_process';
import { basename, dirname, resolve } from 'node:path';

/** What Nest imports only where an app has it. */
const OPTIONAL = /^@nestjs\/(graphql|microservices|websockets)|^class-(transformer|validator)/;

const BUNDLERS = {
  async webpack(entry, file) {
    const { default: webpack } = await import('webpack');
    const { default: Terser } = await import('terser-webpack-plugin');
    const terserOptions = { keep_classnames: false, keep_fnames: false, compress: { passes: 2 } };
    await pack(webpack, entry, file, new Terser({ extractComments: false, terserOptions }));
  },

  async rspack(entry, file) {
    const { rspack } = await import('@rspack/core');
    const minimizerOptions = { compress: { passes: 2 }, mangle: true };
    await pack(rspack, entry, file, new rspack.SwcJsMinimizerRspackPlugin({ minimizerOptions }));
  },

  async esbuild(entry, file) {
    const { build } = await import('esbuild');
    const external = { name: 'external', setup: (to) => to.onResolve({ filter: OPTIONAL }, outside) };
    const outside = ({ path }) => ({ path, external: true });
    await build({
      ...{ entryPoints: [entry], outfile: file, bundle: true, minify: true, plugins: [external] },
      ...{ platform: 'node', target: 'node20', format: 'cjs', logLevel: 'error' },
    });
  },

  /** The app with the package. All other packages stay outside, as is usual with rollup. */
  async rollup(entry, file) {
    const { rollup } = await import('rollup');
    const { nodeResolve } = await import('@rollup/plugin-node-resolve');
    const { minify } = await import('terser');
    const terser = {
      name: 'terser',
      renderChunk: (code) => minify(code, { module: true, compress: { passes: 2 } }),
    };
    const ours = /^(\.|\/|nestjs-syncguard)/;
    const bundle = await rollup({ input: entry, external: (id) => !ours.test(id), plugins: [nodeResolve()] });
    await bundle.write({ file, format: 'cjs', inlineDynamicImports: true, plugins: [terser] });
  },

  async bun(entry, file) {
    const bun = resolve('node_modules/@oven/bun-linux-x64/bin/bun');
    const external = ['@nestjs/graphql*', '@nestjs/microservices*', '@nestjs/websockets*', 'class-*'];
    const outside = external.flatMap((name) => ['--external', name]);
    const args = ['build', entry, `--outfile=${file}`, '--target=node', '--format=cjs', '--minify'];
    execFileSync(bun, [...args, ...outside], { stdio: ['ignore', 'ignore', 'inherit'] });
  },
};

function pack(compiler, entry, file, minimizer) {
  const options = {
    ...{ mode: 'production', target: 'node20', entry },
    output: { path: dirname(file), filename: basename(file) },
    externals: ({ request }, done) => (OPTIONAL.test(request) ? done(null, `commonjs ${request}`) : done()),
    optimization: { minimizer: [minimizer] },
    performance: { hints: false },
  };
  return new Promise((done, failed) =>
    compiler(options, (error, stats) => {
      if (error || stats.hasErrors()) failed(error ?? new Error(stats.toString('errors-only')));
      else done();
    }),
  );
}

const [bundler, entry, file] = process.argv.slice(2);
await BUNDLERS[bundler](resolve(entry), resolve(file));
