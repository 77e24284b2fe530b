// `node -r ./test/support/run-ts.cjs program.ts` runs TypeScript. An `import()` becomes a `require()`, as in jest: Node's own
// would look for './x.js'.
require('esbuild-register/dist/node').register({
  target: `node${process.versions.node}`,
  supported: { 'dynamic-import': false },
});
require('./require-ts.cjs');
