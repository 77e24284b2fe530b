import { MUTANTS } from '../mutants.js';

// That each mutant is caught takes minutes (mutants.suite.ts). That it still finds what it changes is quick to see.
it.each(MUTANTS)('%s finds in a script what it changes', async (name) => {
  await jest.isolateModulesAsync(async () => {
    const { applyMutant } = await import('../mutants.js');
    applyMutant(name);
  });
});
