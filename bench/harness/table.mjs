export function format(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return '-';
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) return String(value);
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
}

const isNumeric = (cell) => cell === '-' || cell === 'yes' || cell === 'no' || !Number.isNaN(Number(cell));

/** A Markdown table of rows that have the same fields. Columns of figures are aligned to the right. */
export function table(title, rows) {
  if (rows.length === 0) return '';
  const heads = Object.keys(rows[0]);
  const cells = rows.map((row) => heads.map((head) => format(row[head])));
  const widths = heads.map((head, i) => Math.max(head.length, ...cells.map((row) => row[i].length)));
  const right = heads.map((_, i) => cells.every((row) => isNumeric(row[i])));
  const pad = (cell, i) => (right[i] ? cell.padStart(widths[i]) : cell.padEnd(widths[i]));
  const line = (row) => `| ${row.map(pad).join(' | ')} |`;
  const rule = `|${widths.map((width, i) => '-'.repeat(width + 1) + (right[i] ? ':' : '-')).join('|')}|`;
  return [`### ${title}`, '', line(heads), rule, ...cells.map(line), ''].join('\n');
}
