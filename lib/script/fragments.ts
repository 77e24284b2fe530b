/** Lua that sets `nowMs`, the server's clock in ms, and `time`, the reply of TIME. No script decides by another clock. */
export const NOW_MS = /* lua */ `
-- Sets: time, nowMs.
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)`;

/** Joins names or values of Lua with commas, in lines that are short enough to read. */
export const inLines = (list: readonly string[]): string =>
  list.reduce((text, each) => {
    const isFull = text.length - text.lastIndexOf('\n') + each.length > 70;
    return `${text},${isFull ? '\n  ' : ' '}${each}`;
  });

/**
 * Lua that takes a text apart: `<names> = string.match(<text>, <pattern>)`. `fields` has a pattern for each field of the
 * text, which are separated by spaces. Only those that are in `names` are captured. So a script reads what it uses, and
 * checks the rest. All names are nil if the text has another form.
 */
export function takeApart<Field extends string>(
  text: string,
  fields: Readonly<Record<Field, string>>,
  names: readonly Field[],
): string {
  const parts = Object.entries<string>(fields);
  const pattern = parts.map(([name, part]) => (names.includes(name as Field) ? `(${part})` : part)).join(' ');
  const captured = parts.map(([name]) => name).filter((name) => names.includes(name as Field));
  return `${inLines(captured)} =\n  string.match(${text}, '^${pattern}$')`;
}
