// Measures the rooms of lib/: `npm run -s measure [folder]`. Lines are counted as `wc -l` does, comments included; a function is as
// long as its text; the mean length of lines that hold code tells whether lines were saved by making them denser.
import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import ts from 'typescript';

const lib = resolve(process.argv[2] ?? join(import.meta.dirname, '../lib'));

const measure = (file) => {
  const text = readFileSync(file, 'utf8');
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true);
  const functions = [];
  const visit = (node) => {
    if (ts.isFunctionLike(node) && node.body) {
      const [first, last] = [node.getStart(), node.getEnd()].map(
        (place) => source.getLineAndCharacterOfPosition(place).line,
      );
      functions.push(last - first + 1);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  const withCode = text.split('\n').filter((line) => line.trim() && !/^\s*(\/\/|\/\*|\*)/.test(line));
  const characters = withCode.reduce((sum, line) => sum + line.trim().length, 0);
  return { lines: text.split('\n').length - 1, functions, code: withCode.length, characters };
};

const row = (room, files) => {
  const sum = (field) => files.reduce((total, file) => total + file[field], 0);
  const functions = files.flatMap((file) => file.functions).sort((a, b) => a - b);
  return {
    room,
    files: files.length,
    lines: sum('lines'),
    'longest file': Math.max(...files.map(({ lines }) => lines)),
    'median function': functions[functions.length >> 1] ?? 0,
    'longest function': functions.at(-1) ?? 0,
    'mean characters a line of code': Number((sum('characters') / sum('code')).toFixed(1)),
  };
};

const rooms = new Map();
for (const name of readdirSync(lib, { recursive: true }).sort()) {
  if (!name.endsWith('.ts')) continue;
  const room = name.includes('/') ? name.slice(0, name.indexOf('/')) : '(entries)';
  rooms.set(room, [...(rooms.get(room) ?? []), measure(join(lib, name))]);
}
console.table([
  ...[...rooms].map(([room, files]) => row(room, files)),
  row('all', [...rooms.values()].flat()),
]);
