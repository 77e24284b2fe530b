import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { NEST_VERSION } from './apps/nest-version.js';
import { CELLS, SUBSCRIPTIONS } from './contexts.js';

const ROOT = resolve(__dirname, '../..');
const PAGE = readFileSync(resolve(ROOT, 'docs/contexts.md'), 'utf8');
const NEST_11 = JSON.parse(readFileSync(resolve(ROOT, 'test/nest11/package.json'), 'utf8')) as {
  dependencies: Record<string, string>;
};
declare const JEST_PROJECT: string;

it('runs on the version of Nest that the project is named after, with all its packages', () => {
  expect(`nest${NEST_VERSION}`).toBe(JEST_PROJECT);
  for (const name of Object.keys(NEST_11.dependencies))
    expect([name, require.resolve(name).includes('/nest11/')]).toEqual([name, NEST_VERSION === 11]);
});

it('docs/contexts.md has the cells that are tested, and no others', () => {
  const [, , ...rows] =
    PAGE.split('\n\n')
      .find((block) => block.startsWith('| context |'))
      ?.split('\n') ?? [];
  const documented = rows.map((row) => {
    const [, context, adapter, ...cells] = row.split('|').map((cell) => cell.trim());
    // Three pairs of columns: of each decorator, Nest 11 and Nest 12.
    return [context, adapter, ...[0, 2, 4].map((pair) => cells[pair + NEST_VERSION - 11])];
  });
  const tested = [...CELLS, ...SUBSCRIPTIONS].map(({ context, adapter, guarded, limited }) => [
    context,
    adapter,
    guarded,
    guarded,
    limited,
  ]);
  expect(documented.map(String).sort()).toEqual(tested.map(String).sort());
});
