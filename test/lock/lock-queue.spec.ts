import { describeLockQueue } from './lock-queue.contract.js';
import { onEachQueue } from './queue-backends.js';

onEachQueue(describeLockQueue);
