// Writes the examples of the pages in docs/ to the files that run as tests: a ```ts block whose first line is
// `// name.ts` becomes test/docs/<page>/name.ts, formatted, and the page shows it as it is formatted.
// test/docs/docs.spec.ts fails where a page and its files differ. `npm run docs:examples`, after a page was changed.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { format, resolveConfig } from 'prettier';

const PAGES = ['around-a-lock', 'rate-limits', 'secrets', 'telemetry', 'testing'];
const FOLDERS = ['guides', 'migration'].flatMap((folder) =>
  readdirSync(join('docs', folder)).map((file) => `${folder}/${file.replace(/\.md$/, '')}`),
);

for (const page of [...PAGES, ...FOLDERS]) {
  const file = join('docs', `${page}.md`);
  let text = readFileSync(file, 'utf8');
  for (const [block, code] of [...text.matchAll(/^```ts\n(\/\/ \S+\.ts\n.*?)^```$/gms)]) {
    const [, name] = /^\/\/ (\S+)\n/.exec(code);
    const target = join('test/docs', page, name);
    const formatted = await format(code, { ...(await resolveConfig(target)), filepath: target });
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, formatted);
    text = text.replace(block, () => `\`\`\`ts\n${formatted}\`\`\``);
  }
  writeFileSync(file, text);
}
