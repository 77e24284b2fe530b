// Starts a compiled sample: `npm run sample pay-once`.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const dist = join(import.meta.dirname, '../sample/dist');
const program = join(dist, process.argv[2] ?? '', 'main.js');
if (existsSync(program)) await import(pathToFileURL(program));
else {
  console.error(`Name a sample: ${readdirSync(dist).join(', ')}.`);
  process.exit(1);
}
