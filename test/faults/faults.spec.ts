import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { readFaults } from '../../tools/faults-list.cjs';

const root = join(__dirname, '../..');

describe('Old faults', () => {
  it.each(readFaults(__dirname))('$name can be put back, and names a suite that is there', (fault) => {
    execFileSync('git', ['apply', '--check', fault.file], { cwd: root });
    const suites = fault.foundBy.filter((word) => word.startsWith('test/'));
    expect(suites.length).toBeGreaterThan(0);
    expect(suites.filter((suite) => !existsSync(join(root, suite)))).toEqual([]);
  });
});
