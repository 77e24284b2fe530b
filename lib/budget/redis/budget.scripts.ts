import { creditScript, refundScript, setLimitScript } from './adjust.scripts.js';
import { chargeScript } from './charge.script.js';
import { finalizeScript } from './finalize.script.js';
import { abortScript, extendScript } from './hold.scripts.js';
import { balanceScript, getScript, pageScript, snapshotScript } from './read.scripts.js';
import { reaperScript, rootsScript } from './reaper.scripts.js';
import { repairScript } from './repair.script.js';
import { reserveScript } from './reserve.script.js';
import type { Script } from '../../script/define-script.js';

export const budgetScripts: readonly Script[] = [
  reserveScript,
  chargeScript,
  finalizeScript,
  abortScript,
  extendScript,
  refundScript,
  creditScript,
  setLimitScript,
  balanceScript,
  getScript,
  pageScript,
  reaperScript,
  snapshotScript,
  repairScript,
  rootsScript,
];
