/** @jest-config-loader esbuild-register */
import type { Config } from 'jest';

const swc = (parser: Record<string, unknown>): [string, Record<string, unknown>] => [
  '@swc/jest',
  {
    swcrc: false,
    jsc: {
      parser,
      transform: { legacyDecorator: true, decoratorMetadata: true },
      target: 'es2022',
      keepClassNames: true,
    },
    module: { type: 'commonjs' },
    sourceMaps: 'inline',
  },
];

// Nest 12 is ESM only and jest on Node < 24.9 cannot require() ESM, so swc rewrites these to CommonJS.
const esm = ['@nestjs'];

const project: NonNullable<Config['projects']>[number] & object = {
  rootDir: '.',
  testEnvironment: 'node',
  testPathIgnorePatterns: ['/node_modules/', '<rootDir>/dist/', '<rootDir>/sample/dist/'],
  moduleFileExtensions: ['ts', 'js', 'json'],
  resolver: '<rootDir>/tools/jest-resolver.cjs',
  transform: {
    '^.+\\.ts$': swc({ syntax: 'typescript', decorators: true }),
    '^.+\\.m?js$': swc({ syntax: 'ecmascript' }),
  },
  transformIgnorePatterns: [`/node_modules/(?!(?:${esm.join('|')})/)`],
  globalSetup: '<rootDir>/test/support/global-setup.ts',
  globalTeardown: '<rootDir>/test/support/global-teardown.ts',
  setupFilesAfterEnv: ['<rootDir>/test/support/unhandled.ts'],
  // Each hook and test takes one more turn of the event loop, in which its stray rejections come to light.
  waitForUnhandledRejections: true,
};

// The samples import the package by its name, as users do.
const byItsName = {
  '^nestjs-syncguard$': '<rootDir>/lib/index.ts',
  '^nestjs-syncguard/testing$': '<rootDir>/lib/testing/index.ts',
  '^nestjs-syncguard/(core|compat|throttler|opentelemetry)$': '<rootDir>/lib/$1.ts',
};

const config: Config = {
  projects: [
    {
      ...project,
      displayName: 'nest12',
      globals: { JEST_PROJECT: 'nest12' },
      testMatch: ['<rootDir>/test/**/*.spec.ts'],
      moduleNameMapper: byItsName,
    },
    {
      ...project,
      displayName: 'nest11',
      globals: { JEST_PROJECT: 'nest11' },
      testMatch: [
        '<rootDir>/test/contexts/*.spec.ts',
        '<rootDir>/test/**/*-contexts.spec.ts',
        '<rootDir>/test/**/*.http.spec.ts',
      ],
      moduleNameMapper: {
        ...byItsName,
        '^(@nestjs/.*)$': ['<rootDir>/test/nest11/node_modules/$1', '$1'],
      },
    },
  ],
  // A busy machine makes a test slow, and not wrong.
  testTimeout: 120_000,
  // Each worker has a redis-server of its own. Tests wait more than they compute, so three keep two cores busy.
  maxWorkers: 3,
  // jest keeps what each suite has loaded, its AsyncLocalStorages too, and Node before 24 writes each of these into each promise.
  // After 70 suites a call allocated 50 kB, and 20,000 calls at once took 55 s of CPU in place of 3. So a worker begins anew.
  workerIdleMemoryLimit: '700MB',
  collectCoverageFrom: ['lib/**/*.ts', '!lib/**/*.d.ts'],
  coverageProvider: 'v8',
  // Looked at only with --coverage.
  coverageThreshold: { global: { lines: 90, branches: 50 } },
  reporters: ['default', '<rootDir>/tools/ci-reporter.cjs'],
};
export default config;
