/** @jest-config-loader esbuild-register */
import type { Config } from 'jest';
import base from './jest.config';

const [nest12] = base.projects as [NonNullable<Config['projects']>[number] & object];

/** For `npm run test:mutants`, which says the suites: one project and one worker, as Stryker needs it. */
const config: Config = {
  ...nest12,
  testMatch: (process.env.MUTANTS_SUITES ?? '').split(',').map((suite) => `<rootDir>/test/${suite}.ts`),
  testTimeout: 20_000,
  maxWorkers: 1,
};
export default config;
