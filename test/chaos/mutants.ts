import { finalizeScript } from '../../lib/budget/redis/finalize.script.js';
import { acquireScript } from '../../lib/lock/redis/acquire.script.js';
import { claimScript } from '../../lib/once/redis/claim.script.js';
import { endScript } from '../../lib/once/redis/end.scripts.js';
import { releaseFor } from '../../lib/lock/redis/release.script.js';
import type { Script } from '../../lib/script/define-script.js';
import { viewScript } from '../../lib/secret/redis/view.script.js';

// Faults put in by hand, in a worker only, to see that the checker finds them.

/** Changes a script's text; throws when there is nothing to change, so that a mutant never goes missing in silence. */
function change(script: Script<never, never, unknown>, from: string, to: string): void {
  if (!script.lua.includes(from))
    throw new Error(`The script ${script.name} does not hold "${from}" any more.`);
  const { lua, command } = script;
  Object.assign(script, { lua: lua.replaceAll(from, to), command: `${command}:mutant` });
}

const release = releaseFor(1) as never;
const OWNER_CHECK = 'elseif not owns(held, lockId) then';

const mutants: Record<string, () => void> = {
  'release-without-owner': () => change(release, OWNER_CHECK, 'elseif false then'),
  // The holder of a lock says that it is live, and an undo does not.
  'undo-left-out': () =>
    change(release, 'local code, own', "if isLive ~= '1' then return 1 end\nlocal code, own"),
  'finalize-keeps-reserved': () =>
    change(finalizeScript as never, 'math.max(reserved - inHold, 0)', 'reserved'),
  'views-cost-nothing': () => change(viewScript as never, 'if left > 0 then left = left - 1 end', ''),
  'once-beside-another': () => change(claimScript as never, 'if nowMs < turnMs then', 'if false then'),
  'once-result-of-the-overtaken': () =>
    change(
      endScript as never,
      "if not once or once.nonce ~= runNonce then return 0 end\nif once.state ~= 'running'",
      "if not once then return 0 end\nif once.state == 'failed'",
    ),
  'acquire-while-held': () => change(acquireScript as never, 'if held then', 'if false then'),
};

export const MUTANTS = Object.keys(mutants);

export function applyMutant(name: string): void {
  const apply = mutants[name];
  if (!apply) throw new Error(`There is no mutant ${name}: ${MUTANTS.join(', ')}.`);
  apply();
}
