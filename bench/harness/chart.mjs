// Pictures as SVG text: bars, ranges and lines. They have their own background and follow the reader's light or dark.
import { format } from './table.mjs';

const WIDTH = 760;
const STYLE = `
    .card { fill: #ffffff; stroke: #d0d7de; } text { fill: #1f2328; font: 13px system-ui, sans-serif; }
    .title { font-size: 16px; font-weight: 600; } .note { fill: #59636e; } .grid { stroke: #d8dee4; }
    .ours { fill: #0969da; } .peer { fill: #9a6700; } .base { fill: #818b98; } .cache { fill: #9a6700; }
    .line { fill: none; stroke-width: 2.5; } .line.ours { stroke: #0969da; } .line.peer { stroke: #9a6700; } .line.base { stroke: #818b98; }
    .goal { stroke: #1a7f37; stroke-width: 2; stroke-dasharray: 5 4; } text.goal { fill: #1a7f37; stroke: none; }
    text.ours, text.peer, text.base { stroke: none; } .strong { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; } text { fill: #f0f6fc; } .note { fill: #9198a1; } .grid { stroke: #30363d; }
      .ours { fill: #4493f8; } .peer, .cache { fill: #d29922; } .base { fill: #6e7681; }
      .line.ours { stroke: #4493f8; } .line.peer { stroke: #d29922; } .line.base { stroke: #6e7681; } .line { fill: none; }
      .goal { stroke: #3fb950; } text.goal { fill: #3fb950; }
    }`;

const escape = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const text = (x, y, value, attributes = '') =>
  `  <text x="${x}" y="${y}" ${attributes}>${escape(value)}</text>`;

function svg({ title, note }, height, body) {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-labelledby="t d">`,
    `  <title id="t">${escape(title)}</title>`,
    `  <desc id="d">${escape(note)}</desc>`,
    `  <style>${STYLE}\n  </style>`,
    `  <rect class="card" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>`,
    text(24, 32, title, 'class="title"'),
    text(24, 52, note, 'class="note"'),
    ...body,
    '</svg>',
    '',
  ].join('\n');
}

const LEFT = 270;
const RIGHT = WIDTH - 90;
const TOP = 74;
const ROW = 30;

/** Maps values to x. A logarithmic scale begins a little before its least value. */
function scaleOf(values, log) {
  const most = Math.max(...values);
  if (!log) return (value) => LEFT + (value / most) * (RIGHT - LEFT);
  const low = Math.log10(Math.min(...values) / 2);
  const high = Math.log10(most);
  return (value) => LEFT + ((Math.log10(value) - low) / (high - low)) * (RIGHT - LEFT);
}

const label = (y, { name, role }) =>
  text(LEFT - 10, y + 14, name, `text-anchor="end"${role === 'ours' ? ' class="strong"' : ''}`);

function bars(picture) {
  const { goal, log } = picture;
  const rows = picture.bars.filter(({ value }) => Number.isFinite(value) && value > 0);
  const x = scaleOf([...rows.map(({ value }) => value), ...(goal ? [goal] : [])], log);
  const bottom = TOP + rows.length * ROW;
  const body = rows.flatMap((row, i) => {
    const y = TOP + i * ROW;
    const width = Math.max(2, x(row.value) - LEFT);
    return [
      label(y, row),
      `  <rect class="${row.role}" x="${LEFT}" y="${y}" width="${width.toFixed(1)}" height="19" rx="3"/>`,
      text(
        (LEFT + width + 8).toFixed(1),
        y + 14,
        format(row.value),
        row.role === 'ours' ? 'class="strong"' : '',
      ),
    ];
  });
  if (goal) {
    const at = x(goal).toFixed(1);
    body.push(`  <line class="goal" x1="${at}" y1="${TOP - 6}" x2="${at}" y2="${bottom}"/>`);
    body.push(text(at, bottom + 14, `goal ${format(goal)}`, 'class="goal" text-anchor="middle"'));
  }
  return svg(picture, bottom + (goal ? 28 : 14), body);
}

function ranges(picture) {
  const rows = picture.ranges;
  const x = scaleOf(
    rows.map(({ high }) => high),
    false,
  );
  const body = rows.flatMap((row, i) => {
    const y = TOP + i * ROW;
    const from = x(row.low);
    const width = Math.max(4, x(row.high) - from);
    return [
      label(y, row),
      `  <rect class="${row.role}" x="${from.toFixed(1)}" y="${y}" width="${width.toFixed(1)}" height="19" rx="3"/>`,
      text((from + width + 8).toFixed(1), y + 14, `${format(row.low)} to ${format(row.high)}`),
    ];
  });
  return svg(picture, TOP + rows.length * ROW + 14, body);
}

const PLOT = { left: 70, right: WIDTH - 190, top: 76, bottom: 290 };
const decades = (low, high) => {
  const found = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); 10 ** power <= high * 1.000001; power++)
    found.push(10 ** power);
  return found;
};
const short = (value) => (value >= 1000 ? value.toLocaleString('en') : String(value));

function lines(picture) {
  const series = picture.lines
    .map((each) => ({ ...each, points: each.points.filter(([, y]) => y > 0.05) }))
    .filter(({ points }) => points.length > 0);
  const all = series.flatMap(({ points }) => points);
  const [xs, ys] = [all.map(([x]) => x), all.map(([, y]) => y)];
  const [xLow, xHigh] = [Math.min(...xs), Math.max(...xs)];
  const yLow = 10 ** Math.floor(Math.log10(Math.min(...ys)));
  const yHigh = 10 ** Math.ceil(Math.log10(Math.max(...ys)));
  const share = (value, low, high) => Math.log10(value / low) / Math.log10(high / low);
  const px = (x) => PLOT.left + share(x, xLow, xHigh) * (PLOT.right - PLOT.left);
  const py = (y) => PLOT.bottom - share(y, yLow, yHigh) * (PLOT.bottom - PLOT.top);
  const body = [];
  for (const y of decades(yLow, yHigh)) {
    body.push(`  <line class="grid" x1="${PLOT.left}" y1="${py(y)}" x2="${PLOT.right}" y2="${py(y)}"/>`);
    body.push(text(PLOT.left - 8, py(y) + 4, short(y), 'class="note" text-anchor="end"'));
  }
  const ticks = xHigh / xLow > 20 ? decades(xLow, xHigh * 1.02) : [...new Set(xs)];
  for (const x of ticks)
    body.push(
      text(
        px(Math.min(x, xHigh)).toFixed(1),
        PLOT.bottom + 18,
        short(x),
        'class="note" text-anchor="middle"',
      ),
    );
  body.push(
    text((PLOT.left + PLOT.right) / 2, PLOT.bottom + 38, picture.unit, 'class="note" text-anchor="middle"'),
  );
  const ends = spread(series.map(({ points }) => py(points.at(-1)[1])));
  series.forEach(({ name, role, points }, i) => {
    const path = points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`);
    body.push(`  <polyline class="line ${role}" points="${path.join(' ')}"/>`);
    for (const point of path)
      body.push(
        `  <circle class="${role}" cx="${point.split(',')[0]}" cy="${point.split(',')[1]}" r="3.5"/>`,
      );
    body.push(text(PLOT.right + 12, ends[i] + 4, `${name}: ${format(points.at(-1)[1])}`));
  });
  return svg(picture, PLOT.bottom + 52, body);
}

/** Keeps labels at the ends of lines from lying on each other. */
function spread(ys) {
  const order = ys.map((_, i) => i).sort((a, b) => ys[a] - ys[b]);
  const placed = [...ys];
  for (let k = 1; k < order.length; k++)
    placed[order[k]] = Math.max(placed[order[k]], placed[order[k - 1]] + 17);
  return placed;
}

export function draw(picture) {
  if (picture.bars) return bars(picture);
  return picture.ranges ? ranges(picture) : lines(picture);
}
