import { claimScript } from './claim.script.js';
import { endScript, forgetScript, renewScript, settleScript } from './end.scripts.js';
import { getScript } from './get.script.js';

export const onceScripts = [claimScript, renewScript, endScript, getScript, settleScript, forgetScript];
