// Reads test/faults/: `<name>.patch`, one old fault a file, as `git diff` writes it, under two lines of head:
//   Fault: what went wrong, in a sentence
//   Found by: the arguments of jest that must find it, e.g. test/lock/lock-wire.spec.ts -t "words of the test's name"
const { readdirSync, readFileSync } = require('node:fs');
const { join } = require('node:path');

const head = (text, name, file) => {
  const value = new RegExp(`^${name}: (.+)$`, 'm').exec(text)?.[1];
  if (!value) throw new Error(`${file} has no line "${name}: ...".`);
  return value;
};

exports.readFaults = (folder) =>
  readdirSync(folder)
    .filter((file) => file.endsWith('.patch'))
    .map((name) => {
      const file = join(folder, name);
      const text = readFileSync(file, 'utf8');
      const words = head(text, 'Found by', name).match(/"[^"]*"|\S+/g);
      return {
        name: name.slice(0, -'.patch'.length),
        file,
        fault: head(text, 'Fault', name),
        foundBy: words.map((word) => word.replace(/^"|"$/g, '')),
      };
    });
