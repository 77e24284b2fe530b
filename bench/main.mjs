// npm run bench: measures the package beside its peers, and says which goals are met. See docs/performance.md.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join, resolve } from 'node:path';
import { enterHalf, makeHalf, onCore } from './harness/cores.mjs';
import { LOADS, PARTS, readOptions, USAGE } from './harness/options.mjs';
import { BESIDE, installPackage, installPeers, PACKAGE, treeOf } from './harness/package.mjs';

const ROOT = resolve(import.meta.dirname, '..');
const RESULTS = join(import.meta.dirname, 'results');
const MEASURED = '\n## What was measured\n';
const fileOf = (name, extension, half = false) => join(RESULTS, `${name}${half ? '-half' : ''}.${extension}`);
const readResult = (part, half) => JSON.parse(readFileSync(fileOf(part, 'json', half), 'utf8'));

/** Measures a part in this process, which is on its core, and prints its tables. */
async function measureHere(part, options) {
  const { half } = options;
  enterHalf();
  process.setMaxListeners(0); // Each contestant has one, which ends it.
  const [{ startServer }, { draw }, { machineCosts }] = await Promise.all([
    import('./harness/redis.mjs'),
    import('./harness/chart.mjs'),
    import('./harness/machine.mjs'),
  ]);
  console.error(`${new Date().toLocaleTimeString('en-GB')} ${part}${half ? ', half a core' : ''}`);
  const { run } = await import(`./parts/${part}.mjs`);
  const redis = await startServer();
  const where = `${cpus()[0]?.model}, Node ${process.version}`;
  const costs = await machineCosts(redis);
  const result = await run({ redis, options });
  const about = { part, at: new Date().toISOString(), half, where, costs };
  writeFileSync(fileOf(part, 'json', half), JSON.stringify({ ...about, ...result }, null, 1));
  const tables = result.tables.join('\n');
  console.log(`\n${tables}`);
  writeFileSync(fileOf(part, 'md', half), tables);
  for (const [name, picture] of Object.entries(result.pictures))
    writeFileSync(fileOf(name, 'svg', half), draw(picture));
}

/** Measures parts, each in a process of its own with its own server, so that nothing of another part is in its figures. */
function measure(parts, core, half) {
  const flags = process.argv.slice(2).filter((each) => !PARTS.includes(each) && each !== '--half');
  const env = { BENCH_CORE: core, ...(half && { BENCH_HALF: makeHalf() }) };
  return parts.map((part) => {
    const args = [process.argv[1], part, ...flags, ...(half ? ['--half'] : [])];
    const status = onCore(core, args, env);
    if (status !== 0) throw new Error(`The part ${part} ended with code ${status}.`);
    return readResult(part, half);
  });
}

/** Puts the pictures and the table of goals of the last run into the docs. */
async function publish() {
  const { draw } = await import('./harness/chart.mjs');
  for (const part of PARTS.filter((each) => existsSync(fileOf(each, 'json'))))
    for (const [name, picture] of Object.entries(readResult(part, false).pictures))
      writeFileSync(join(ROOT, 'docs/assets', `bench-${name}.svg`), draw(picture));
  const page = join(ROOT, 'docs/performance.md');
  const text = readFileSync(page, 'utf8');
  // What stands there now, from its heading to the first picture.
  const from = text.indexOf(MEASURED) + MEASURED.length;
  const table = readFileSync(fileOf('goals', 'md'), 'utf8').trim();
  writeFileSync(page, `${text.slice(0, from)}\n${table}\n\n${text.slice(text.indexOf('![', from))}`);
}

async function main(options) {
  mkdirSync(RESULTS, { recursive: true });
  if (options.docs) return publish();
  const build = !options['no-build'];
  installPeers();
  installPackage(ROOT, PACKAGE, { build });
  if (options.beside) await treeOf(ROOT, options.beside, (tree) => installPackage(tree, BESIDE, { build }));
  const { core, all, half } = options;
  const halves = LOADS.filter((part) => options.parts.includes(part));
  const first = measure(options.parts, core, half);
  const second = all ? measure(halves, core, true) : [];
  await report(first, second);
}

/** One table of what the machine costs, and one of all goals. */
async function report(first, second) {
  const [{ goalTable, verdict }, { table }] = await Promise.all([
    import('./harness/goals.mjs'),
    import('./harness/table.mjs'),
  ]);
  // JSON has null for the ratio to a peer that `--only` has left out.
  const goalsOf = (results) => results.flatMap(({ goals }) => goals.filter(({ ratio }) => ratio !== null));
  const machines = [...first, ...second].map(({ part, half, costs }) => ({
    during: half ? `${part}, half a core` : part,
    ...costs,
  }));
  const day = new Date().toLocaleDateString('en-GB', { dateStyle: 'long' });
  const tables = [`Measured on ${day}: ${first[0].where}.\n`, table('What this machine takes', machines)];
  if (goalsOf(first).length > 0) tables.push(goalTable(goalsOf(first), goalsOf(second)));
  writeFileSync(fileOf('goals', 'md'), tables.join('\n'));
  console.log(`\n${tables.join('\n')}\n${verdict(goalsOf(first))}`);
  if (second.length > 0) console.log(`On half a core: ${verdict(goalsOf(second))}`);
}

const options = readOptions(process.argv.slice(2));
if (options.help) console.log(USAGE);
else if (process.env.BENCH_CORE) {
  await measureHere(options.parts[0], options);
  process.exit();
} else await main(options);
