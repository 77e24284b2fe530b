import { aclScript, neededCommands } from '../../../lib/assembly/acl-probe.js';
import { healthScript } from '../../../lib/assembly/redis-connection.js';
import { budgetExamples } from './budget.examples.js';
import { counterExamples } from './counter.examples.js';
import type { ScriptExample } from './example.js';
import { fenceExamples } from './fence.examples.js';
import { limitExamples } from './limit.examples.js';
import { lockExamples } from './lock.examples.js';
import { onceExamples } from './once.examples.js';
import { secretExamples } from './secret.examples.js';

export const examples: readonly ScriptExample[] = [
  { script: healthScript, keys: { health: 'syncguard/health' }, args: {}, replaces: /health/ },
  {
    script: aclScript,
    keys: { scratch: 'syncguard/health:acl' },
    args: { commands: neededCommands().join(' ') },
    replaces: /health/,
    tolerates: /./,
  },
  ...lockExamples,
  ...fenceExamples,
  ...limitExamples,
  ...secretExamples,
  ...counterExamples,
  ...budgetExamples,
  ...onceExamples,
];
