// Draws docs/architecture.svg from the imports of lib/: `node tools/architecture.mjs`. With --check it compares instead.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

const root = resolve(import.meta.dirname, '..');
const drawing = join(root, 'docs/architecture.svg');

const WIDTH = 900;
const ROW = 104;
const BOX = { width: 148, height: 56 };
const TOP = 76;

function importsOfLib() {
  const { stdout, stderr, status } = spawnSync(
    join(root, 'node_modules/.bin/depcruise'),
    ['--config', '.dependency-cruiser.cjs', 'lib', '--output-type', 'json'],
    { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 28 },
  );
  if (status !== 0) throw new Error(stderr || 'The architecture check has failed.');
  return JSON.parse(stdout).modules.flatMap(({ source, dependencies }) =>
    dependencies.map(({ resolved }) => [source, resolved]).filter(([, to]) => to.startsWith('lib/')),
  );
}

const ENTRIES = 'entries';
/** The room of a file: its folder in lib/. */
const roomOf = (path) => (path.split('/').length === 2 ? ENTRIES : path.split('/')[1]);
const innerRoomOf = (path) => (path.split('/').length > 3 ? path.split('/')[2] : undefined);

function towerOf(imports) {
  const rooms = new Map(imports.flat().map((path) => [roomOf(path), { inner: new Set(), below: new Set() }]));
  for (const [from, to] of imports) {
    const room = rooms.get(roomOf(from));
    if (innerRoomOf(from)) room.inner.add(innerRoomOf(from));
    if (roomOf(to) !== roomOf(from)) room.below.add(roomOf(to));
  }
  return rooms;
}

/** A room stands one floor above the highest room that it imports. Floor 0 imports nothing. */
function floorsOf(rooms) {
  const floors = new Map();
  const floorOf = (name, above = []) => {
    if (above.includes(name)) throw new Error(`${[...above, name].join(' -> ')}: an arrow leads up.`);
    if (!floors.has(name)) {
      const below = [...rooms.get(name).below].map((each) => floorOf(each, [...above, name]));
      floors.set(name, 1 + Math.max(-1, ...below));
    }
    return floors.get(name);
  };
  for (const name of rooms.keys()) floorOf(name);
  return floors;
}

/** Without the arrows that follow from others. */
function arrowsOf(rooms) {
  const reaches = (from, to) => from === to || [...rooms.get(from).below].some((each) => reaches(each, to));
  return [...rooms].flatMap(([from, { below }]) =>
    [...below]
      .filter((to) => ![...below].some((other) => other !== to && reaches(other, to)))
      .map((to) => [from, to]),
  );
}

/** The middle of each box. A room alone on its floor stands above what it imports, so that arrows beside it stay free. */
function placesOf(rooms, floors) {
  const count = 1 + Math.max(...floors.values());
  const places = new Map();
  for (let floor = 0; floor < count; floor++) {
    const carries = (name) =>
      [...rooms].some(([above, { below }]) => below.has(name) && floors.get(above) === floor + 1);
    const names = [...rooms.keys()]
      .filter((name) => floors.get(name) === floor)
      .sort((a, b) => carries(b) - carries(a) || (a < b ? -1 : 1));
    const below = [...rooms.get(names[0]).below].filter((name) => floors.get(name) === floor - 1);
    const alone = below.reduce((sum, name) => sum + places.get(name).x / below.length, 0);
    names.forEach((name, i) =>
      places.set(name, {
        x: names.length === 1 && alone ? alone : ((i + 0.5) * WIDTH) / names.length,
        y: TOP + (count - 1 - floor) * ROW,
      }),
    );
  }
  return { places, height: TOP + count * ROW - (ROW - BOX.height) + 24 };
}

const STYLE = `
    .card { fill: #ffffff; stroke: #d0d7de; } text { fill: #1f2328; font: 14px system-ui, sans-serif; text-anchor: middle; }
    .title { font-size: 16px; font-weight: 600; text-anchor: start; } .note { fill: #59636e; font-size: 12px; }
    .room { fill: #ddf4ff; stroke: #0969da; } .arrow { fill: none; stroke: #818b98; } .head { fill: #818b98; }
    .name { font-weight: 600; } .lead { text-anchor: start; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; } text { fill: #f0f6fc; } .note { fill: #9198a1; }
      .room { fill: #0c2d4b; stroke: #4493f8; } .arrow { stroke: #9198a1; } .head { fill: #9198a1; }
    }`;

function draw() {
  const rooms = towerOf(importsOfLib());
  const { places, height } = placesOf(rooms, floorsOf(rooms));
  const arrows = arrowsOf(rooms).map(([from, to]) => {
    const [a, b] = [places.get(from), places.get(to)];
    const [start, end] = [a.y + BOX.height, b.y - 3];
    return `  <path class="arrow" marker-end="url(#head)" d="M${a.x} ${start} C${a.x} ${start + 30} ${b.x} ${end - 34} ${b.x} ${end}"/>`;
  });
  const boxes = [...rooms].map(([name, { inner }]) => {
    const { x, y } = places.get(name);
    const note = name === ENTRIES ? 'index, core, compat and others' : [...inner].sort().join(' · ');
    return [
      `  <rect class="room" x="${x - BOX.width / 2}" y="${y}" width="${BOX.width}" height="${BOX.height}" rx="6"/>`,
      `  <text class="name" x="${x}" y="${y + (note ? 25 : 33)}">${name}</text>`,
      ...(note ? [`  <text class="note" x="${x}" y="${y + 43}">${note}</text>`] : []),
    ].join('\n');
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-labelledby="t d">`,
    '  <title id="t">The rooms of lib/</title>',
    '  <desc id="d">Each box is a folder. Arrows show imports, and all of them lead down.</desc>',
    `  <style>${STYLE}\n  </style>`,
    '  <marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker>',
    `  <rect class="card" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>`,
    '  <text class="title" x="24" y="32">The rooms of lib/</text>',
    '  <text class="note lead" x="24" y="52">A box is a folder, with its inner folders. Arrows show imports: all lead down, and those that follow from others are left out.</text>',
    ...arrows,
    ...boxes,
    '</svg>',
    '',
  ].join('\n');
}

const svg = draw();
if (!process.argv.includes('--check')) writeFileSync(drawing, svg);
else if (readFileSync(drawing, 'utf8') !== svg) {
  console.error(
    'docs/architecture.svg is not what the imports of lib/ are. Draw it: node tools/architecture.mjs',
  );
  process.exit(1);
}
