// npm run bench: measures the package beside its peers, and says which goals are met. See docs/performance.md.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join, resolve } from 'node:path';
import { PARTS, readOptions, USAGE } from './harness/options.mjs';
import { BESIDE, installPackage, installPeers, PACKAGE } from './harness/package.mjs';

const ROOT = resolve(import.meta.dirname, '..');
const RESULTS = join(import.meta.dirname, 'results');
const PICTURES = join(ROOT, 'docs/assets');
const fileOf = (part, extension) => join(RESULTS, `${part}.${extension}`);

/** Client and server on one core: without it, waking another core costs more than anything that is measured. */
function pinned(core) {
  if (core === 'none' || process.env.BENCH_PINNED) return false;
  const args = ['-c', core, process.execPath, ...process.argv.slice(1)];
  const child = spawnSync('taskset', args, { stdio: 'inherit', env: { ...process.env, BENCH_PINNED: core } });
  if (child.error) {
    console.error('taskset was not found, so nothing is pinned: latencies are not comparable.');
    return false;
  }
  process.exitCode = child.status ?? 1;
  return true;
}

/** Measures a part in this process, and prints its tables. Returns its goals. */
async function measureHere(part, options) {
  const [{ startServer }, { draw }] = await Promise.all([
    import('./harness/redis.mjs'),
    import('./harness/chart.mjs'),
  ]);
  console.error(`${new Date().toLocaleTimeString('en-GB')} ${part}`);
  const { run } = await import(`./parts/${part}.mjs`);
  const result = await run({ redis: await startServer(), options });
  const where = { node: process.version, cpu: cpus()[0]?.model, pinned: process.env.BENCH_PINNED ?? 'no' };
  writeFileSync(
    fileOf(part, 'json'),
    JSON.stringify({ part, at: new Date().toISOString(), where, ...result }, null, 1),
  );
  const tables = result.tables.join('\n');
  console.log(`\n${tables}`);
  writeFileSync(fileOf(part, 'md'), tables);
  for (const [name, picture] of Object.entries(result.pictures))
    writeFileSync(fileOf(name, 'svg'), draw(picture));
  return result.goals;
}

/** Measures a part in a process of its own with its own server, so that nothing of another part is in its figures. */
function measureApart(part) {
  const flags = process.argv.slice(2).filter((each) => !PARTS.includes(each));
  const args = [process.argv[1], part, ...flags, '--no-build'];
  const { status } = spawnSync(process.execPath, args, { stdio: 'inherit' });
  if (status !== 0) throw new Error(`The part ${part} ended with code ${status}.`);
  return JSON.parse(readFileSync(fileOf(part, 'json'), 'utf8')).goals;
}

async function drawPictures() {
  const { draw } = await import('./harness/chart.mjs');
  for (const part of PARTS.filter((each) => existsSync(fileOf(each, 'json')))) {
    const { pictures } = JSON.parse(readFileSync(fileOf(part, 'json'), 'utf8'));
    for (const [name, picture] of Object.entries(pictures))
      writeFileSync(join(PICTURES, `bench-${name}.svg`), draw(picture));
  }
}

async function main(options) {
  mkdirSync(RESULTS, { recursive: true });
  if (options.pictures) return drawPictures();
  installPeers();
  installPackage(ROOT, PACKAGE, { build: !options['no-build'] });
  if (options.beside) installPackage(resolve(options.beside), BESIDE, { build: !options['no-build'] });
  const goals = [];
  if (options.parts.length === 1) goals.push(...(await measureHere(options.parts[0], options)));
  else for (const part of options.parts) goals.push(...measureApart(part));
  const { goalTable, verdict } = await import('./harness/goals.mjs');
  if (goals.length > 0) console.log(`\n${goalTable(goals)}\n${verdict(goals)}`);
  process.exit();
}

const options = readOptions(process.argv.slice(2));
if (options.help) console.log(USAGE);
else if (!pinned(options.core)) await main(options);
