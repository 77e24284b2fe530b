import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { ENTRIES, exportsOf } from './exports.js';
import { isIn, literalsOf, namesInFirstCells, ROOT, sources } from './sources.js';

const page = readFileSync(join(ROOT, 'docs/options.md'), 'utf8');

/** What options are made of: what an entry exports under such a name. */
const IS_OPTIONS =
  /(Options?|Defaults|Config|(?<!Late|Overage)Policy|Tier|Escalation|BudgetLimit|BudgetRef|CalendarPeriod|NewSecret|ByViews|ByTime|FencedWrite|FencedValue)$/;
/** Not an object with options of ours, but what ioredis takes. */
const FOREIGN = 'RedisConnectionOptions';

const exported = new Map(ENTRIES.flatMap((entry) => [...exportsOf(entry)]));

type Declared = ts.InterfaceDeclaration | ts.TypeAliasDeclaration;

const optionTypes = new Map<string, Declared>(
  sources.flatMap(({ fileName, statements }) =>
    statements
      .filter((node): node is Declared => ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node))
      .map((node): [string, Declared] => [node.name.text, node])
      .filter(([name]) => IS_OPTIONS.test(name) && name !== FOREIGN)
      .filter(([name]) => `${exported.get(name)}.ts` === fileName),
  ),
);

/** The names that an interface takes over from another: `extends Pick<Other, 'a' | 'b'>`. */
const pickedBy = (node: ts.Node): string[] =>
  isIn(ts.isExpressionWithTypeArguments)(node)
    .filter(({ expression }) => expression.getText() === 'Pick')
    .flatMap(({ typeArguments = [] }) => typeArguments.flatMap(literalsOf));

/** `a`, and `a.b` where `a` takes an object that is described in place. */
function namesOf(node: ts.Node): string[] {
  const names: string[] = [];
  const visit = (child: ts.Node, path: string): void => {
    const isMember = ts.isPropertySignature(child) || ts.isMethodSignature(child);
    const isNever = isMember && child.type?.kind === ts.SyntaxKind.NeverKeyword;
    if (isNever || (isMember && ts.getJSDocTags(child).some(({ tagName }) => tagName.text === 'internal')))
      return;
    const name = isMember ? `${path}${child.name.getText()}` : undefined;
    if (name) names.push(name);
    // What a function takes and returns is no option.
    if (!ts.isFunctionTypeNode(child) && !ts.isParameter(child))
      ts.forEachChild(child, (next) => visit(next, name ? `${name}.` : path));
  };
  ts.forEachChild(node, (child) => visit(child, ''));
  return [...new Set([...names, ...pickedBy(node)])];
}

const sections = page.split(/^###? /m).map((text) => {
  const [heading = ''] = text.split('\n', 1);
  const types = [...heading.matchAll(/`(\w+)`/g)]
    .map(([, name = '']) => name)
    .filter((name) => optionTypes.has(name));
  return { heading, types, names: namesInFirstCells(text) };
});

describe('docs/options.md', () => {
  it('has a section for every type of options', () => {
    expect(optionTypes.size).toBeGreaterThan(25);
    expect(sections.flatMap(({ types }) => types).sort()).toEqual([...optionTypes.keys()].sort());
  });

  it.each(sections.filter(({ types, names }) => types.length + names.length > 0))(
    'has the options of $heading, and no others',
    ({ types, names }) => {
      const all = types.flatMap((type) => namesOf(optionTypes.get(type) as Declared));
      // Where an object is described by its parts, it needs no row of its own.
      const needed = all.filter((name) => !all.some((other) => other.startsWith(`${name}.`)));
      expect(needed.filter((name) => !names.includes(name))).toEqual([]);
      expect(names.filter((name) => !all.includes(name))).toEqual([]);
    },
  );

  it('has every name that the module checks its options against', () => {
    const optionFiles = sources.filter(({ fileName }) => /options\.ts$/.test(fileName));
    const known = optionFiles
      .flatMap(isIn(ts.isCallExpression))
      .filter(({ expression }) => expression.getText() === 'knownOptions')
      .map(({ arguments: [, , names] }) => names);
    const constants = optionFiles
      .flatMap(isIn(ts.isVariableDeclaration))
      .filter(({ name }) => /_NAMES$/.test(name.getText()))
      .map(({ initializer }) =>
        initializer && ts.isAsExpression(initializer) ? initializer.expression : initializer,
      );
    const lists = [...known, ...constants]
      .flatMap((names) => (names && ts.isArrayLiteralExpression(names) ? [...names.elements] : []))
      .flatMap((name) => (ts.isStringLiteral(name) ? [name.text] : []));
    expect(lists).toContain('keyPrefix');
    const listed = new Set([...page.matchAll(/`[^`\n]+`/g)].flatMap(([code]) => code.match(/\w+/g) ?? []));
    expect(lists.filter((name) => !listed.has(name))).toEqual([]);
  });
});
