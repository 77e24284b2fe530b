// Checks what a build exports: `node tools/check-exports.mjs`. Fails where an entry's types name a type of ours that the entry
// does not export: who imports from ./core alone must be able to write down whatever ./core gives and takes. Fails also
// where a class has another name than its export, since Nest and error stacks show the name of the class, and where an editor
// would show nothing about an exported name or a member of it.
import { createRequire } from 'node:module';
import { resolve } from 'node:path';

const require = createRequire(import.meta.url);
const ts = require('typescript');
require('reflect-metadata');
const dist = resolve(import.meta.dirname, '../dist/cjs');
const ENTRIES = ['index', 'core', 'compat', 'throttler', 'opentelemetry', 'testing/index'].map(
  (name) => `${dist}/${name}.d.ts`,
);

const program = ts.createProgram(ENTRIES, {
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  target: ts.ScriptTarget.ES2022,
  noEmit: true,
  skipLibCheck: true,
});
const checker = program.getTypeChecker();

const target = (symbol) => (symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol);

/** Of our own, and declared at the top of a module: not a type parameter, not a member. */
const isOurs = (symbol) =>
  symbol.declarations?.some(
    (declaration) =>
      declaration.getSourceFile().fileName.startsWith(dist) &&
      !ts.isTypeParameterDeclaration(declaration) &&
      (ts.isSourceFile(declaration.parent) || ts.isVariableDeclarationList(declaration.parent)),
  );

function namesIn(node, found) {
  const name = ts.isTypeReferenceNode(node)
    ? node.typeName
    : ts.isExpressionWithTypeArguments(node)
      ? node.expression
      : ts.isTypeQueryNode(node)
        ? node.exprName
        : undefined;
  const symbol = name && checker.getSymbolAtLocation(name);
  if (symbol) found.add(target(symbol));
  ts.forEachChild(node, (child) => void namesIn(child, found));
  return found;
}

const exportsOf = (entry) =>
  checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry))).map(target);

let wrong = 0;
for (const entry of ENTRIES) {
  // ./testing, ./throttler and ./opentelemetry are always used beside the package's own entry.
  const exported = new Set([
    ...exportsOf(entry),
    ...(/\/testing\/|\/(throttler|opentelemetry)\./.test(entry) ? exportsOf(ENTRIES[0]) : []),
  ]);
  for (const symbol of exportsOf(entry))
    for (const declaration of symbol.declarations ?? [])
      for (const named of namesIn(declaration, new Set()))
        if (isOurs(named) && !exported.has(named)) {
          wrong++;
          console.error(
            `${entry.slice(dist.length + 1)}: ${symbol.name} names ${named.name}, which is not exported.`,
          );
        }
}
for (const entry of ENTRIES)
  for (const [name, value] of Object.entries(require(entry.replace('.d.ts', '.js'))))
    if (typeof value === 'function' && /^class\b/.test(value) && value.name !== name) {
      wrong++;
      console.error(`${entry.slice(dist.length + 1)}: the class ${name} has the name ${value.name}.`);
    }

const isDocumented = (symbol) =>
  symbol.getDocumentationComment(checker).length > 0 || symbol.getJsDocTags(checker).length > 0;

/** Its type is one value, which an editor shows: `ok: true`, `reason: 'exceeded'`, `key?: never`. */
const isOneValue = ({ type }) =>
  type !== undefined &&
  (ts.isLiteralTypeNode(type) ||
    type.kind === ts.SyntaxKind.NeverKeyword ||
    type.kind === ts.SyntaxKind.UndefinedKeyword);

const isNamedMember = ({ flags, name, declarations = [] }) =>
  !(flags & (ts.SymbolFlags.Constructor | ts.SymbolFlags.TypeParameter | ts.SymbolFlags.Prototype)) &&
  !name.startsWith('__') &&
  declarations.some(
    (declaration) =>
      !(declaration.name && ts.isPrivateIdentifier(declaration.name)) &&
      !(ts.getCombinedModifierFlags(declaration) & (ts.ModifierFlags.Private | ts.ModifierFlags.Protected)) &&
      !isOneValue(declaration),
  );

function membersOf(symbol) {
  const members = new Set([...(symbol.members?.values() ?? []), ...(symbol.exports?.values() ?? [])]);
  const find = (node) => {
    if (ts.isTypeLiteralNode(node))
      for (const { name } of node.members) if (name) members.add(checker.getSymbolAtLocation(name));
    ts.forEachChild(node, find);
  };
  if (symbol.flags & ts.SymbolFlags.TypeAlias) symbol.declarations.forEach(find);
  return [...members].filter(isNamedMember);
}

let names = 0;
for (const symbol of new Set(ENTRIES.flatMap(exportsOf)))
  for (const each of [symbol, ...membersOf(symbol)]) {
    names++;
    if (isDocumented(each)) continue;
    wrong++;
    console.error(
      `${each === symbol ? '' : `${symbol.name}.`}${each.name} has no sentence that an editor could show.`,
    );
  }
if (wrong === 0) console.log(`${names} public names and members have their sentence.`);
else process.exitCode = 1;
