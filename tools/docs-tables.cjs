// Writes the tables of docs/options.md and of the codes in docs/errors.md from TSDoc: `npm run docs:tables`, after an option or a
// code was changed. Of options it is that of the types which the headings name; what stands between a heading and its first
// table is written by hand. Specs of test/docs fail where a page and the code differ.
const { readdirSync, readFileSync, writeFileSync } = require('node:fs');
const { dirname, join, resolve } = require('node:path');
const ts = require('typescript');

const root = resolve(__dirname, '..');
const FILTER = join(root, 'lib/transport/syncguard-exception.filter.ts');
const ENTRIES = ['index', 'core', 'compat', 'opentelemetry', 'testing/index'];

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

/** The name itself of `budget.ReserveOptions`. */
const lastName = (name) => (name.right ?? name).text;

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
        `those of \`${lastName(node.typeArguments[0].typeName)}\` without ${names(node.typeArguments[1])}`,
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

/** All statements of lib/. What every feature shares comes first. */
const sources = () => {
  const files = readdirSync(join(root, 'lib'), { recursive: true }).filter((file) => file.endsWith('.ts'));
  const isShared = (file) => file.startsWith('core/');
  return [...files.filter(isShared), ...files.filter((file) => !isShared(file)).sort()].flatMap((file) => [
    ...parsed(join(root, 'lib', file)),
  ]);
};

/** The table of codes in the filter: `Deadlock: 423`. Others are a 500. */
function statuses() {
  const table = parsed(FILTER)
    .filter(ts.isVariableStatement)
    .flatMap(({ declarationList }) => [...declarationList.declarations])
    .find(({ name }) => name.text === 'STATUS_BY_CODE');
  return new Map(table.initializer.properties.map((each) => [each.name.text, each.initializer.text]));
}

/** "- `Code`: what happened. To do: what to do." */
const CODES = /<br>- ((?:`\w+`(?:, )?)+): (.*?) To do: (.*?)(?=<br>|$)/g;

const asSentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Returns the page with the table of codes anew. */
function errorsPage(page) {
  const status = statuses();
  const rows = sources()
    .filter((node) => ts.isTypeAliasDeclaration(node) || ts.isClassDeclaration(node))
    .flatMap((node) => [...`<br>${textOf(node)}`.matchAll(CODES)])
    .map(([, codes, happened, toDo]) => {
      const [code] = codes.match(/\w+/);
      return `| ${codes} | ${status.get(code) ?? 500} | ${asSentence(happened)} | ${asSentence(toDo)} |`;
    });
  const table = ['| code | status | what happened | what to do |', '| --- | --- | --- | --- |', ...rows].join(
    '\n',
  );
  return page.replace(/^\| code \| status .*?(?=\n\n)/ms, () => table);
}

if (require.main === module)
  for (const [name, anew] of Object.entries({ options: optionsPage, errors: errorsPage })) {
    const file = join(root, `docs/${name}.md`);
    writeFileSync(file, anew(readFileSync(file, 'utf8')));
  }
module.exports = { errorsPage, optionsPage };
