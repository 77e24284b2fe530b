/** @jest-config-loader esbuild-register */
import type { Config } from 'jest';
import base from './jest.config';

const [nest12] = base.projects as [NonNullable<Config['projects']>[number] & object];

/** `npm run test:engines`: the contracts of all backends on engines that take a while to start, and histories under faults. */
const config: Config = {
  ...base,
  projects: [{ ...nest12, displayName: 'engines', testMatch: ['<rootDir>/test/{engines,chaos}/*.suite.ts'] }],
  testTimeout: 30_000,
};
export default config;
