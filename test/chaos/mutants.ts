import { finalizeScript } from '../../lib/budget/budget.scripts.js';
import { acquireScript, releaseHeldScript, releaseScript } from '../../lib/lock/lock.scripts.js';
import type { Script } from '../../lib/script/define-script.js';
import { viewScript } from '../../lib/secret/secret.scripts.js';

// Faults put in by hand, in a worker only, to see that the checker finds them.

/** Changes a script's text; throws when there is nothing to change, so that a mutant never goes missing in silence. */
function change(script: Script<never, never, unknown>, from: string, to: string): void {
  if (!script.lua.includes(from))
    throw new Error(`The script ${script.name} does not hold "${from}" any more.`);
  const { lua, command } = script;
  Object.assign(script, { lua: lua.replaceAll(from, to), command: `${command}:mutant` });
}

const OWNER_CHECK = 'if not owns(held, lockId) then return 0 end';

const mutants: Record<string, () => void> = {
  'release-without-owner': () => {
    for (const script of [releaseScript, releaseHeldScript]) change(script as never, OWNER_CHECK, '');
  },
  'undo-left-out': () => change(releaseScript as never, OWNER_CHECK, 'do return 1 end'),
  'finalize-keeps-reserved': () => change(finalizeScript as never, 'minus(reserved, own)', 'reserved'),
  'views-cost-nothing': () => change(viewScript as never, 'if left > 0 then left = left - 1 end', ''),
  'acquire-while-held': () => change(acquireScript as never, 'if held then', 'if false then'),
};

export const MUTANTS = Object.keys(mutants);

export function applyMutant(name: string): void {
  const apply = mutants[name];
  if (!apply) throw new Error(`There is no mutant ${name}: ${MUTANTS.join(', ')}.`);
  apply();
}
