import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { workerRedis } from '../support/redis.js';

const ROOT = resolve(__dirname, '../..');

/** The most files of lib that someone opens who follows one call to Redis, without telemetry. */
const MOST_FILES: Record<string, number> = {
  view: 9,
  acquire: 12,
  check: 15,
  reserve: 17,
  '@RateLimit': 24,
};
const MOST_LINES = 360;

interface Trace {
  name: string;
  files: string[];
}

/** Runs each operation in a program of its own, since coverage looks at a whole process. */
function traces(): Trace[] {
  const args = ['-r', './test/support/run-ts.cjs', 'test/package/trace/main.ts'];
  const printed = execFileSync(process.execPath, [...args, String(workerRedis().port)], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  return printed
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Trace);
}

const linesOf = (file: string): number =>
  readFileSync(join(ROOT, 'lib', file), 'utf8').split('\n').length - 1;

it('one operation passes few files, and none of them is long', () => {
  const seen = traces();
  expect(seen.map(({ name }) => name)).toEqual(Object.keys(MOST_FILES));
  const tooMany = seen.filter(({ name, files }) => files.length > (MOST_FILES[name] as number));
  expect(tooMany).toEqual([]);
  // A trace that saw nothing would pass: each operation runs a script.
  for (const { files } of seen) expect(files).toContain('script/script-runner.ts');
  const tooLong = [...new Set(seen.flatMap(({ files }) => files))].filter(
    (file) => linesOf(file) > MOST_LINES,
  );
  expect(tooLong).toEqual([]);
});
