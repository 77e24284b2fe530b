import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { optionsPage } from '../../tools/docs-tables.cjs';
import { ENTRIES, exportsOf } from './exports.js';
import { ROOT } from './sources.js';

const page = readFileSync(join(ROOT, 'docs/options.md'), 'utf8');

/** What options are made of: what an entry exports under such a name. */
const IS_OPTIONS =
  /(Options?|Defaults|Config|(?<!Late|Overage)Policy|Tier|Escalation|BudgetLimit|BudgetRef|CalendarPeriod|NewSecret|ByViews|ByTime|FencedWrite|FencedValue)$/;
/** Not an object with options of ours, but what ioredis takes. */
const FOREIGN = 'RedisConnectionOptions';

describe('docs/options.md', () => {
  it('has the tables that `npm run docs:tables` writes from the types', () => {
    expect(page).toBe(optionsPage(page));
  });

  it('has a section for every type of options', () => {
    const types = ENTRIES.flatMap((entry) => [...exportsOf(entry).keys()]).filter(
      (name) => IS_OPTIONS.test(name) && name !== FOREIGN,
    );
    expect(types.length).toBeGreaterThan(25);
    const named = [...page.matchAll(/^### .*$/gm)].flatMap(([heading]) =>
      [...heading.matchAll(/`(\w+)`/g)].map(([, name = '']) => name),
    );
    expect(types.filter((name) => !named.includes(name))).toEqual([]);
  });
});
