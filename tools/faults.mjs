// Puts each old fault of test/faults/ back, one at a time, and runs the suite that must find it:
// `npm run test:faults [-- name ...]`. Works on a copy, so the checkout stays as it is.
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { clearTimeout, setTimeout } from 'node:timers';
import { parseArgs } from 'node:util';
import { readFaults } from './faults-list.cjs';

const root = resolve(import.meta.dirname, '..');
const TIME_LIMIT_MS = 120_000;

const { positionals: names } = parseArgs({ allowPositionals: true });
const faults = readFaults(join(root, 'test/faults')).filter(
  ({ name }) => !names.length || names.includes(name),
);
const unknown = names.filter((name) => !faults.some((fault) => fault.name === name));
if (unknown.length) throw new Error(`test/faults/ has no ${unknown.join(', ')}.`);

/** What git knows or would add, with the installed packages linked beside it. */
function copyCheckout() {
  const copy = mkdtempSync(join(tmpdir(), 'syncguard-faults-'));
  const listed = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
    cwd: root,
    encoding: 'utf8',
  });
  for (const file of listed.split('\0'))
    if (file && existsSync(join(root, file))) cpSync(join(root, file), join(copy, file));
  for (const packages of ['node_modules', 'test/nest11/node_modules'])
    if (existsSync(join(root, packages))) symlinkSync(join(root, packages), join(copy, packages));
  return copy;
}

/** Found: a test that ran has failed. A suite that could not start, or found no test, has found nothing. */
async function find({ file, foundBy }, copy) {
  const apply = (...flags) => execFileSync('git', ['apply', ...flags, file], { cwd: copy });
  apply();
  try {
    const started = Date.now();
    const jest = spawn('npx', ['jest', ...foundBy], { cwd: copy, detached: true });
    const timer = setTimeout(() => process.kill(-jest.pid, 'SIGKILL'), TIME_LIMIT_MS);
    let output = '';
    for (const stream of [jest.stdout, jest.stderr]) stream.on('data', (chunk) => (output += chunk));
    const [code] = await once(jest, 'close');
    clearTimeout(timer);
    const [, passed = 0, failed = 0] = /^(\d+) passed, (\d+) failed/m.exec(output) ?? [];
    const ran = Number(passed) + Number(failed) > 0 && !output.includes('Test suite failed to run');
    return { found: code !== 0 && ran && Number(failed) > 0, failed, output, ms: Date.now() - started };
  } finally {
    apply('-R');
  }
}

const copy = copyCheckout();
const missed = [];
try {
  for (const fault of faults) {
    const { found, failed, output, ms } = await find(fault, copy);
    const seconds = `${(ms / 1000).toFixed(1)} s`;
    console.log(
      `${found ? 'found' : 'NOT FOUND'}  ${fault.name}: ${fault.foundBy.join(' ')} (${failed} red, ${seconds})`,
    );
    if (found) continue;
    missed.push(fault.name);
    console.log(output.split('\n').slice(-40).join('\n'));
  }
} finally {
  rmSync(copy, { recursive: true, force: true });
}
console.log(`${faults.length - missed.length} found, ${missed.length} not found`);
if (missed.length) process.exitCode = 1;
