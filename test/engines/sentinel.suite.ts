import { startSentinelEngine } from '../support/engines/engine.js';
import { describeContracts } from './contracts.js';

describeContracts('Redis behind Sentinels', () => startSentinelEngine());
