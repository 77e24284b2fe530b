import { describeModel } from '../once/once.model.js';

jest.setTimeout(600_000);
describeModel(100_000);
