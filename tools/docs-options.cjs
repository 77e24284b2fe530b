// Writes the tables of docs/options.md from the TSDoc of the types that its headings name: `npm run docs:options`, after an
// option was changed. What stands between a heading and its first table is written by hand.
// test/docs/options-page.spec.ts fails where the page and the types differ.
const { readFileSync, writeFileSync } = require('node:fs');
const { dirname, join, resolve } = require('node:path');
const ts = require('typescript');

const root = resolve(__dirname, '..');
const PAGE = join(root, 'docs/options.md');
const ENTRIES = ['index', 'core', 'compat', 'testing/index'];

const parsed = (file) =>
  ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.ES2022, true).statements;

/** The files that an entry exports from, itself included. */
const filesOf = (file) => [
  file,
  ...parsed(file)
    .filter((node) => ts.isExportDeclaration(node) && node.moduleSpecifier)
    .flatMap(({ moduleSpecifier: { text } }) => filesOf(join(dirname(file), text.replace(/\.js$/, '.ts')))),
];

/** The types of these files, by name. */
const exportedTypes = () =>
  new Map(
    [...new Set(ENTRIES.flatMap((entry) => filesOf(join(root, 'lib', `${entry}.ts`))))]
      .flatMap((file) => [...parsed(file)])
      .filter((node) => ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node))
      .map((node) => [node.name.text, node]),
  );

/** Not written by a user: `keys?: undefined` beside `key`, and what is internal. */
const isHidden = (node) =>
  [ts.SyntaxKind.NeverKeyword, ts.SyntaxKind.UndefinedKeyword].includes(node.type?.kind) ||
  ts.getJSDocTags(node).some(({ tagName }) => tagName.text === 'internal');

/** The description of a member, in one line. */
const textOf = (node) =>
  ts
    .getJSDocCommentsAndTags(node)
    .filter(ts.isJSDoc)
    .map(({ comment }) => ts.getTextOfJSDocComment(comment) ?? '')
    .join('\n')
    .replace(/\{@link (\w+)\}/g, '`$1`')
    .replace(/\n- /g, '<br>- ')
    .replace(/\s+/g, ' ')
    .replaceAll('|', '\\|')
    .trim();

/** The options of a type: `a`, and `a.b` where `a` takes an object that is described in place. */
function rowsOf(type, types) {
  const found = new Map();
  const visit = (node, path) => {
    const isMember = ts.isPropertySignature(node) || ts.isMethodSignature(node);
    if (isMember && isHidden(node)) return;
    const name = isMember ? `${path}${node.name.getText()}` : '';
    if (isMember && !found.get(name)) found.set(name, rowOf(name, node, types));
    // What a function takes and returns is no option.
    if (!ts.isFunctionTypeNode(node) && !ts.isParameter(node) && !ts.isHeritageClause(node))
      ts.forEachChild(node, (child) => visit(child, name ? `${name}.` : path));
  };
  ts.forEachChild(type, (node) => visit(node, ''));
  for (const [name, row] of found) if (!row) throw new Error(`${type.name.text}.${name} has no sentence.`);
  return [...found.values()];
}

const DEFAULT = /\s*Default: (.*?)\.(?=\s|<br>|$)/;

/** Undefined if the member has no sentence: another alternative of its union may have one. */
function rowOf(name, node, types) {
  const text = textOf(node);
  const [said, value = ''] = DEFAULT.exec(text) ?? [''];
  const what = [text.replace(said, '').trim(), valuesOf(node, types)].join(' ').replace(/ +/g, ' ').trim();
  if (what === '') return undefined;
  const byDefault = /^(true|false)$/.test(value) ? `\`${value}\`` : value;
  return `| \`${name}\` | ${node.questionToken ? byDefault : needOf(name, node)} | ${what} |`;
}

/** What the type says of its values behind its first sentence, if it is one of ours that lists some: `'record' | 'cap'`. */
function valuesOf({ type }, types) {
  const named = type && ts.isTypeReferenceNode(type) && types.get(type.typeName.getText());
  const isList = named && ts.isTypeAliasDeclaration(named) && /^'|\| '/.test(named.type.getText());
  return isList ? textOf(named).replace(/^.*?[.:](?= |<br>|$)/, '') : '';
}

/** Of a union each alternative has what it needs. */
const needOf = (name, { parent: { parent } }) =>
  !name.includes('.') && (ts.isUnionTypeNode(parent) || ts.isParenthesizedTypeNode(parent))
    ? 'alternative'
    : 'required';

/** Which options a type takes over from others: "those of `A` without `b`". */
function takenOver(type) {
  const said = [];
  const names = (node) =>
    [...node.getText().matchAll(/'(\w+)'/g)].map(([, name]) => `\`${name}\``).join(', ');
  const visit = (node) => {
    if (ts.isTypeLiteralNode(node) || ts.isPropertySignature(node)) return;
    const name = (node.typeName ?? node.expression)?.getText();
    if (name === 'Pick')
      said.push(`${names(node.typeArguments[1])} of \`${node.typeArguments[0].typeName.text}\``);
    else if (name === 'Omit')
      said.push(
        `those of \`${node.typeArguments[0].typeName.text}\` without ${names(node.typeArguments[1])}`,
      );
    else if (name) said.push(`those of \`${name}\``);
    else ts.forEachChild(node, visit);
  };
  if (ts.isInterfaceDeclaration(type)) type.heritageClauses?.forEach(visit);
  else visit(type.type);
  return said.join(', and ');
}

const TABLE = ['| option | default | what |', '| --- | --- | --- |'];

function tableOf(type, types, isOneOfSeveral) {
  const rows = rowsOf(type, types);
  const also = takenOver(type);
  const table = rows.length > 0 ? [[...TABLE, ...rows].join('\n')] : [];
  const end = rows.length > 0 ? ':' : '.';
  if (isOneOfSeveral)
    return [`\`${type.name.text}\`${also && ` has also ${also}`}${end}`, ...table].join('\n\n');
  return [...(also ? [`Also ${also}.`] : []), ...table].join('\n\n');
}

/** Returns the page with its tables anew. */
function optionsPage(page) {
  const types = exportedTypes();
  return (
    page
      .split(/^(?=##+ )/m)
      .map((section) => {
        const [heading] = section.split('\n', 1);
        const named = [...heading.matchAll(/`(\w+)`/g)].flatMap(([, name]) => types.get(name) ?? []);
        if (named.length === 0) return section;
        const byHand = section.split(/^(?:\||`\w+`(?: has also .*)?[.:]$|Also )/m, 1)[0].trimEnd();
        const tables = named.map((type) => tableOf(type, types, named.length > 1));
        return `${[byHand, ...tables].join('\n\n')}\n\n`;
      })
      .join('')
      .trimEnd() + '\n'
  );
}

if (require.main === module) writeFileSync(PAGE, optionsPage(readFileSync(PAGE, 'utf8')));
module.exports = { optionsPage };
