import { checkScripts } from './check.script.js';
import { forgiveWindowScript, peekWindowScript } from './fixed-window.scripts.js';
import {
  blockScript,
  forgiveScript,
  resetScript,
  unblockScript,
  withdrawScript,
} from './identity.scripts.js';
import { peekScript } from './peek.script.js';
import type { Script } from '../../script/define-script.js';

export const limitScripts: readonly Script[] = [
  ...checkScripts,
  peekScript,
  peekWindowScript,
  withdrawScript,
  forgiveScript,
  forgiveWindowScript,
  resetScript,
  blockScript,
  unblockScript,
] as readonly Script[];
