// Jest loads globalSetup by Node's own require, past tools/jest-resolver.cjs: here './x.js' finds './x.ts' as well.
const Module = require('node:module');

const resolve = Module._resolveFilename;
Module._resolveFilename = (request, parent, ...rest) => {
  const fromTypeScript = parent?.filename?.endsWith('.ts');
  return resolve(fromTypeScript ? request.replace(/^(\.{1,2}\/.*)\.js$/, '$1.ts') : request, parent, ...rest);
};
