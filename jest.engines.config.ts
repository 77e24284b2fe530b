/** @jest-config-loader esbuild-register */
import type { Config } from 'jest';
import base from './jest.config';

const [nest12] = base.projects as [NonNullable<Config['projects']>[number] & object];

/**
 * `npm run test:engines`: what takes a while to start or to install. The contracts of all backends on other engines,
 * histories under faults, and the packed package out of bundlers and on other runtimes.
 */
const config: Config = {
  ...base,
  projects: [
    { ...nest12, displayName: 'engines', testMatch: ['<rootDir>/test/{engines,chaos,package}/*.suite.ts'] },
  ],
  testTimeout: 30_000,
};
export default config;
