import ts from 'typescript';
import { dirname, join, normalize } from 'node:path';
import { sources } from './sources.js';

const sourceOf = (file: string): ts.SourceFile => {
  const found = sources.find(({ fileName }) => normalize(fileName) === normalize(file));
  if (!found) throw new Error(`There is no lib/${file}.`);
  return found;
};

const isExported = (node: ts.Statement): boolean =>
  ts.canHaveModifiers(node) &&
  (ts.getModifiers(node) ?? []).some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword) &&
  !ts.getJSDocTags(node).some(({ tagName }) => tagName.text === 'internal');

function declaredIn(node: ts.Statement): string[] {
  if (ts.isVariableStatement(node))
    return node.declarationList.declarations.map(({ name }) => name.getText());
  const { name } = node as ts.Statement & { name?: ts.Identifier };
  return name ? [name.text] : [];
}

/** The names that an entry exports, types included, and the file of each: `exportsOf('index')`. */
export function exportsOf(file: string): Map<string, string> {
  const names = new Map<string, string>();
  for (const node of sourceOf(`${file}.ts`).statements) {
    if (isExported(node)) for (const name of declaredIn(node)) names.set(name, file);
    if (!ts.isExportDeclaration(node)) continue;
    const { exportClause, moduleSpecifier } = node;
    const from =
      moduleSpecifier && ts.isStringLiteral(moduleSpecifier)
        ? join(dirname(file), moduleSpecifier.text.replace(/\.js$/, ''))
        : file;
    if (exportClause && ts.isNamedExports(exportClause))
      for (const { name } of exportClause.elements) names.set(name.text, from);
    else for (const [name, origin] of exportsOf(from)) names.set(name, origin);
  }
  return names;
}

export const ENTRIES = ['index', 'core', 'compat', 'throttler', 'opentelemetry', 'testing/index'] as const;
