import * as budgetScripts from '../budget/redis/budget.scripts.js';
import { counterScripts } from '../counter/redis/counter.scripts.js';
import { limitScripts } from '../limit/redis/limit.scripts.js';
import { fenceScripts } from '../lock/redis/fence.scripts.js';
import { lockScripts } from '../lock/redis/lock.scripts.js';
import type { Script } from '../script/define-script.js';
import { onceScripts } from '../once/redis/once.scripts.js';
import { secretScripts } from '../secret/redis/secret.scripts.js';

/**
 * The scripts that are registered at boot, over which the tests of the script laws run. Scripts that depend on the calls
 * of the app are registered at their first use: those for locks of three and more keys, and those that check limits.
 */
export const allScripts: readonly Script[] = [
  ...lockScripts,
  ...fenceScripts,
  ...limitScripts,
  ...Object.values(budgetScripts),
  ...secretScripts,
  ...counterScripts,
  ...onceScripts,
];
