import { describeNestedLocks } from './lock-nested.contract.js';
import { onEachQueue } from './queue-backends.js';

onEachQueue(describeNestedLocks);
