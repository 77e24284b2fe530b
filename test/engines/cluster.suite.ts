import { NEVER_MS, startClusterEngine } from '../support/engines/engine.js';
import { describeContracts } from './contracts.js';

describeContracts('a Cluster of 3 masters and 3 replicas', () =>
  startClusterEngine({ nodeTimeoutMs: NEVER_MS }),
);
