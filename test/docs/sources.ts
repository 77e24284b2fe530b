import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import ts from 'typescript';

export const ROOT = resolve(__dirname, '../..');

/** Every file of lib/, parsed. */
export const sources: readonly ts.SourceFile[] = readdirSync(join(ROOT, 'lib'), {
  recursive: true,
  encoding: 'utf8',
})
  .filter((file) => file.endsWith('.ts'))
  .map((file) =>
    ts.createSourceFile(file, readFileSync(join(ROOT, 'lib', file), 'utf8'), ts.ScriptTarget.ES2022, true),
  );

/** Finds the nodes of a kind, in a tree. */
export const isIn =
  <Found extends ts.Node>(matches: (node: ts.Node) => node is Found) =>
  (tree: ts.Node): Found[] => {
    const found: Found[] = [];
    const visit = (node: ts.Node): void => {
      if (matches(node)) found.push(node);
      ts.forEachChild(node, visit);
    };
    visit(tree);
    return found;
  };

/** The strings of a type such as 'a' | 'b'. */
export const literalsOf = (type: ts.Node): string[] =>
  isIn(ts.isLiteralTypeNode)(type).flatMap(({ literal }) =>
    ts.isStringLiteral(literal) ? [literal.text] : [],
  );

/** The names in code spans at the beginning of each row of the tables in a text. */
export const namesInFirstCells = (text: string): string[] =>
  [...text.matchAll(/^\| (`[^|]*`) *\|/gm)].flatMap(([, cell = '']) =>
    [...cell.matchAll(/`([^`]+)`/g)].map(([, name = '']) => name),
  );
